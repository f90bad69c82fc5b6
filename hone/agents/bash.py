"""The bash agent: commands out of replies, their output as the next messages.

A reply asks by one fenced block or by calls of the tool `bash`, as its prompts say (`hone.agents.scaffold`).
It ends when a command's output begins with the submit sentinel and the command succeeded (what a command
prints decides, not what it says), or at a limit on turns, tokens, time or consecutive format errors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hone.agents.actions import BASH_TOOL, Action, FormatError, read_actions
from hone.agents.commands import Ran, run_command
from hone.agents.contract import AgentRun
from hone.agents.scaffold import Mode, Scaffold, render
from hone.outcomes import Outcome
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, Turn


class BashAgent:
    """Stateless; see `hone.agents.contract.Agent`. Raises ScaffoldError for templates that do not render.

    `token_limit` counts sampled tokens (0: no limit). A limit is looked at before each reply, so the commands
    of the reply that crosses it are still run.
    """

    def __init__(self, scaffold: Scaffold, *, token_limit: int = 0) -> None:
        self.scaffold = scaffold
        self.token_limit = token_limit
        self._tools = [BASH_TOOL] if scaffold.mode is Mode.TOOLS else None
        rehearse(scaffold)

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxLost, EngineError and ContextOverflow; `run` holds the turns until then."""
        started = time.monotonic()
        run.tools = self._tools or ()
        variables = {**self.scaffold.variables(sandbox.spec.workdir), "task": task.problem}
        run.messages.extend(opening(self.scaffold, variables))
        format_errors = tokens = 0
        while (limit := self._limit(len(run.turns), tokens, format_errors, started)) is None:
            turn_started = time.monotonic()
            reply = await chat.reply(list(run.messages), tools=self._tools)
            tokens += reply.sampled_tokens
            try:
                actions = read_actions(self.scaffold, reply)
            except FormatError as error:
                format_errors += 1
                variables |= counters(len(run.turns) + 1, started)
                told = format_error(self.scaffold, error, variables)
                if self.scaffold.generation == 1:
                    run.messages.append(reply.to_message())
                run.messages.append(told)
                await run.record(turn_of(run, reply, [], [], [told], turn_started))
                continue
            format_errors = 0
            run.messages.append(reply.to_message())
            ran = await self._run_all(sandbox, actions, started)
            if ran[-1].submits(self.scaffold.submits):
                run.submitted = True
                await run.record(turn_of(run, reply, actions, ran, [], turn_started))
                return
            variables |= counters(len(run.turns) + 1, started)
            told = observations(self.scaffold, actions, ran, variables)
            run.messages.extend(told)
            await run.record(turn_of(run, reply, actions, ran, told, turn_started))
        run.ending = limit

    async def _run_all(self, sandbox: Sandbox, actions: Sequence[Action], started: float) -> list[Ran]:
        """Run one after another, until one submits."""
        ran: list[Ran] = []
        for action in actions:
            ran.append(
                await run_command(
                    sandbox,
                    action.command,
                    interpreter=self.scaffold.interpreter,
                    timeout_s=self._command_timeout_s(started),
                    cwd=self.scaffold.cwd,
                    env=self.scaffold.env,
                )
            )
            if ran[-1].submits(self.scaffold.submits):
                break
        return ran

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


def counters(calls: int, started: float) -> dict[str, Any]:
    """What templates may name of how far a rollout is; a reply of one's own policy has no price."""
    return {
        "n_model_calls": calls,
        "model_cost": 0.0,
        "elapsed_seconds": int(time.monotonic() - started),
    }


def opening(scaffold: Scaffold, variables: dict[str, Any]) -> list[Message]:
    variables = variables | counters(0, time.monotonic())
    messages: list[Message] = []
    if scaffold.system_template:
        messages.append({"role": "system", "content": render(scaffold.system_template, variables)})
    messages.append({"role": "user", "content": render(scaffold.instance_template, variables)})
    return messages


def format_error(scaffold: Scaffold, error: FormatError, variables: dict[str, Any]) -> Message:
    """What the policy is told; the second generation's template names nothing but the error's variables."""
    offered = variables | error.variables if scaffold.generation == 1 else error.variables
    return {"role": "user", "content": render(scaffold.format_error_template, offered)}


def observations(
    scaffold: Scaffold, actions: Sequence[Action], ran: Sequence[Ran], variables: dict[str, Any]
) -> list[Message]:
    """One message for each command."""
    messages: list[Message] = []
    for action, done in zip(actions, ran, strict=True):
        if done.timed_out and scaffold.timeout_template is not None:
            spelled = {"action": action.command, "command": action.command}
            text = render(scaffold.timeout_template, variables | {"action": spelled, "output": done.output})
        else:
            text = render(scaffold.observation_template, variables | {"output": done.variables})
        message: Message = {"role": "user", "content": text}
        if action.call_id is not None:
            message = {"role": "tool", "content": text, "tool_call_id": action.call_id}
        messages.append(message)
    return messages


def turn_of(
    run: AgentRun,
    reply: Reply,
    actions: Sequence[Action],
    ran: Sequence[Ran],
    told: Sequence[Message],
    started: float,
) -> Turn:
    """The next turn of `run`; its exit code is that of the first command that failed, and 0 when none did.

    A turn that submits is told nothing: it shows what its commands printed.
    """
    texts = [message["content"] for message in told] if told else [done.output for done in ran]
    codes = [done.exit_code for done in ran]
    return Turn(
        index=len(run.turns),
        node=reply.node,
        reply=reply.content,
        action="\n".join(str(action.command) for action in actions[: len(ran)]) if ran else None,
        exit_code=next((code for code in codes if code != 0), 0) if codes else None,
        observation="\n".join(texts),
        seconds=time.monotonic() - started,
    )


def rehearse(scaffold: Scaffold) -> None:
    """Render every template once, so that one that cannot be rendered is found before any rollout.

    Raises ScaffoldError.
    """
    variables = {**scaffold.variables("/"), "task": "task"}
    opening(scaffold, variables)
    variables |= counters(1, time.monotonic())
    for timed_out in (False, True):
        done = Ran(output="output", exit_code=-1 if timed_out else 0, timed_out=timed_out)
        observations(scaffold, [Action(command="command")], [done], variables)
    for truncated in (False, True):
        try:
            read_actions(scaffold, Reply(content="", node=None, truncated=truncated))
        except FormatError as error:
            format_error(scaffold, error, variables)
