"""The bash agent: one fenced bash command per reply, its output as the next message.

It ends when a command's output begins with the submit sentinel and the command succeeded (what a command
prints decides, not what it says), or at a limit on turns, tokens, time or consecutive format errors.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from hone.agents.contract import AgentRun
from hone.agents.scaffold import SUBMIT, Scaffold, render
from hone.outcomes import Outcome
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import ExecResult, Sandbox
from hone.types import Message, Task, Turn


class BashAgent:
    """Stateless; see `hone.agents.contract.Agent`. Raises ScaffoldError for templates that do not render.

    `token_limit` counts sampled tokens (0: no limit). A limit is looked at before each reply, so the command
    of the reply that crosses it is still run.
    """

    def __init__(self, scaffold: Scaffold, *, token_limit: int = 0) -> None:
        self.scaffold = scaffold
        self.token_limit = token_limit
        self._rehearse()

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxLost, EngineError and ContextOverflow; `run` holds the turns until then."""
        started = time.monotonic()
        run.messages.extend(self._opening(task.problem, task.environment.workdir))
        format_errors = tokens = 0
        while (limit := self._limit(len(run.turns), tokens, format_errors, started)) is None:
            turn_started = time.monotonic()
            reply = await chat.reply(list(run.messages))
            tokens += reply.sampled_tokens
            run.messages.append({"role": "assistant", "content": reply.content})
            actions = self.scaffold.actions(reply.content)
            if len(actions) != 1:
                format_errors += 1
                await self._record(run, reply, None, None, self._format_error(reply, actions), turn_started)
                continue
            format_errors = 0
            result = await sandbox.exec(
                actions[0],
                timeout_s=self._command_timeout_s(started),
                cwd=self.scaffold.cwd,
                env=self.scaffold.env,
                merge_stderr=True,
            )
            output = output_text(result)
            if submits(result, output):
                run.submitted = True
                await run.record(_turn(run, reply, actions[0], result.exit_code, output, turn_started))
                return
            observation = self._observation(
                task.environment.workdir,
                len(run.turns) + 1,
                actions[0],
                result,
                output,
                time.monotonic() - started,
            )
            await self._record(run, reply, actions[0], result.exit_code, observation, turn_started)
        run.ending = limit

    def _rehearse(self) -> None:
        """Render every template once, so that one that cannot be rendered is found before any rollout."""
        self._opening("task", "/")
        for timed_out in (False, True):
            result = ExecResult(
                exit_code=-1 if timed_out else 0,
                stdout=b"",
                stderr=b"",
                stdout_bytes=0,
                stderr_bytes=0,
                timed_out=timed_out,
                seconds=0.0,
            )
            self._observation("/", 1, "command", result, "output", 0.0)
        for truncated in (False, True):
            self._format_error(Reply(content="", node=None, truncated=truncated), [])

    def _opening(self, problem: str, workdir: str) -> list[Message]:
        variables = {"task": problem, **self._variables(workdir), **_machine()}
        messages: list[Message] = []
        if self.scaffold.system_template:
            messages.append({"role": "system", "content": render(self.scaffold.system_template, **variables)})
        messages.append({"role": "user", "content": render(self.scaffold.instance_template, **variables)})
        return messages

    def _variables(self, workdir: str) -> dict[str, Any]:
        """What every template may name, beside its own variables."""
        scaffold = self.scaffold
        return {
            "cwd": scaffold.cwd or workdir,
            "timeout": scaffold.timeout_s,
            "step_limit": scaffold.step_limit,
            "env": dict(scaffold.env),
        }

    def _limit(self, turns: int, tokens: int, format_errors: int, started: float) -> Outcome | None:
        scaffold = self.scaffold
        if 0 < scaffold.max_consecutive_format_errors <= format_errors:
            return Outcome.FORMAT_LIMIT
        if 0 < scaffold.step_limit <= turns:
            return Outcome.TURN_LIMIT
        if 0 < self.token_limit <= tokens:
            return Outcome.TOKEN_LIMIT
        if 0 < scaffold.wall_time_limit_s <= time.monotonic() - started:
            return Outcome.TIME_LIMIT
        return None

    def _command_timeout_s(self, started: float) -> float:
        """A command may not outlive the rollout's time limit by more than a second."""
        if not self.scaffold.wall_time_limit_s:
            return self.scaffold.timeout_s
        left = self.scaffold.wall_time_limit_s - (time.monotonic() - started)
        return min(self.scaffold.timeout_s, max(left, 1.0))

    def _format_error(self, reply: Reply, actions: list[str]) -> str:
        return render(
            self.scaffold.format_error_template,
            actions=actions,
            error=f"Expected exactly 1 action, found {len(actions)}.",
            finish_reason="length" if reply.truncated else "stop",
        )

    def _observation(
        self, workdir: str, calls: int, action: str, result: ExecResult, output: str, seconds: float
    ) -> str:
        scaffold = self.scaffold
        if result.timed_out and scaffold.timeout_template is not None:
            spelled = {"action": action, "command": action}
            return render(scaffold.timeout_template, action=spelled, output=output)
        exception = ""
        if result.timed_out:
            exception = f"The command timed out after {result.seconds:.0f} s and was killed."
        return render(
            scaffold.observation_template,
            output={"output": output, "returncode": result.exit_code, "exception_info": exception},
            n_model_calls=calls,
            elapsed_seconds=int(seconds),
            **self._variables(workdir),
        )

    async def _record(
        self,
        run: AgentRun,
        reply: Reply,
        action: str | None,
        exit_code: int | None,
        observation: str,
        started: float,
    ) -> None:
        turn = _turn(run, reply, action, exit_code, observation, started)
        run.messages.append({"role": "user", "content": observation})
        await run.record(turn)


def submits(result: ExecResult, output: str) -> bool:
    """Whether a command's result hands in the work: it succeeded and its first line is the sentinel."""
    if result.exit_code != 0 or result.timed_out:
        return False
    return output.lstrip().split("\n", 1)[0].strip() == SUBMIT


def output_text(result: ExecResult) -> str:
    """A command's output as text, with a mark where the sandbox cut it (half head, half tail)."""
    omitted = result.stdout_bytes - len(result.stdout)
    if omitted <= 0:
        return result.text
    middle = len(result.stdout) // 2
    head = result.stdout[:middle].decode("utf-8", "replace")
    tail = result.stdout[middle:].decode("utf-8", "replace")
    return f"{head}\n[... {omitted} bytes omitted ...]\n{tail}"


def _turn(
    run: AgentRun, reply: Reply, action: str | None, exit_code: int | None, observation: str, started: float
) -> Turn:
    return Turn(
        index=len(run.turns),
        node=reply.node,
        reply=reply.content,
        action=action,
        exit_code=exit_code,
        observation=observation,
        seconds=time.monotonic() - started,
    )


def _machine() -> dict[str, str]:
    uname = platform.uname()
    return {
        "system": uname.system,
        "release": uname.release,
        "version": uname.version,
        "machine": uname.machine,
    }
