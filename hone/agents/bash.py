"""The bash agent: run the commands of each reply; their output is the next message.

A reply holds one fenced block or calls of the tool `bash`, as its prompts ask (`hone.agents.scaffold`). The
agent submits when a command succeeds and its output begins with the submit sentinel; the text of the command
does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hone.agents.actions import BASH_TOOL, Action, CommandResult, FormatError, parse_actions, run_command
from hone.agents.contract import AgentRun, Limits, Step, run_loop
from hone.agents.scaffold import Mode, Scaffold, render
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task
from hone.utils.clock import monotonic


class BashAgent:
    """Stateless; see `hone.agents.contract.Agent`. Raises ScaffoldError for templates that do not render."""

    def __init__(self, scaffold: Scaffold, *, token_limit: int = 0) -> None:
        """`token_limit` counts sampled tokens; 0: none. The reply that crosses a limit is still acted on."""
        self.scaffold = scaffold
        self._limits = Limits(
            turns=scaffold.step_limit,
            tokens=token_limit,
            seconds=scaffold.wall_time_limit_s,
            format_errors=scaffold.max_consecutive_format_errors,
        )
        check_templates(scaffold)

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxLost, EngineError and ContextOverflow; `run` holds the turns until then."""
        rollout = _Rollout(self.scaffold, task, sandbox, run)
        await run_loop(chat, run, self._limits, rollout.act)


class _Rollout:
    """One conversation: acts on replies in its sandbox."""

    def __init__(self, scaffold: Scaffold, task: Task, sandbox: Sandbox, run: AgentRun) -> None:
        self._scaffold, self._sandbox, self._run = scaffold, sandbox, run
        self._started = monotonic()
        self._variables = {**scaffold.variables(sandbox.spec.workdir), "task": task.problem}
        run.tools = [BASH_TOOL] if scaffold.mode is Mode.TOOLS else ()
        run.messages.extend(first_messages(scaffold, self._variables))

    async def act(self, reply: Reply) -> Step:
        """Run the commands of a reply, or answer one that cannot be parsed."""
        scaffold, messages = self._scaffold, self._run.messages
        try:
            actions = parse_actions(scaffold, reply)
        except FormatError as error:
            answer = format_error_message(scaffold, error, self._variables | self._progress())
            messages.extend([reply.to_message(), answer] if scaffold.generation == 1 else [answer])
            return Step(observation=answer["content"])
        messages.append(reply.to_message())
        results = await self._execute(actions)
        if results[-1].submits(scaffold.submits):
            return bash_step(actions, results, [])
        answers = observations(scaffold, actions, results, self._variables | self._progress())
        messages.extend(answers)
        return bash_step(actions, results, answers)

    async def _execute(self, actions: Sequence[Action]) -> list[CommandResult]:
        """Run commands in order, up to the first that submits."""
        scaffold, results = self._scaffold, list[CommandResult]()
        for action in actions:
            result = await run_command(
                self._sandbox,
                action.command,
                interpreter=scaffold.interpreter,
                timeout_s=self._command_timeout_s(),
                cwd=scaffold.cwd,
                env=scaffold.env,
            )
            results.append(result)
            if result.submits(scaffold.submits):
                break
        return results

    def _command_timeout_s(self) -> float:
        """Bound a command by the rollout's time limit, with one second to spare."""
        if not self._scaffold.wall_time_limit_s:
            return self._scaffold.timeout_s
        left = self._scaffold.wall_time_limit_s - (monotonic() - self._started)
        return min(self._scaffold.timeout_s, max(left, 1.0))

    def _progress(self) -> dict[str, Any]:
        return progress_variables(len(self._run.turns) + 1, monotonic() - self._started)


def progress_variables(calls: int, elapsed_s: float) -> dict[str, Any]:
    """Return the template variables that change during a rollout; the policy's own replies cost nothing."""
    return {"n_model_calls": calls, "model_cost": 0.0, "elapsed_seconds": int(elapsed_s)}


def first_messages(scaffold: Scaffold, variables: dict[str, Any]) -> list[Message]:
    """Return the system prompt, unless it is empty, and the task."""
    variables = variables | progress_variables(0, 0.0)
    messages: list[Message] = []
    if scaffold.system_template:
        messages.append({"role": "system", "content": render(scaffold.system_template, variables)})
    messages.append({"role": "user", "content": render(scaffold.instance_template, variables)})
    return messages


def format_error_message(scaffold: Scaffold, error: FormatError, variables: dict[str, Any]) -> Message:
    """Return the answer to a reply that cannot be parsed.

    The template of the format's second generation may name the error's variables only.
    """
    offered = variables | error.variables if scaffold.generation == 1 else error.variables
    return {"role": "user", "content": render(scaffold.format_error_template, offered)}


def observations(
    scaffold: Scaffold,
    actions: Sequence[Action],
    results: Sequence[CommandResult],
    variables: dict[str, Any],
) -> list[Message]:
    """Return one message for each command."""
    messages: list[Message] = []
    for action, result in zip(actions, results, strict=True):
        if result.timed_out and scaffold.timeout_template is not None:
            names = {"action": {"action": action.command, "command": action.command}}
            text = render(scaffold.timeout_template, variables | names | {"output": result.output})
        else:
            text = render(scaffold.observation_template, variables | {"output": result.variables})
        message: Message = {"role": "user", "content": text}
        if action.call_id is not None:
            message = {"role": "tool", "content": text, "tool_call_id": action.call_id}
        messages.append(message)
    return messages


def bash_step(
    actions: Sequence[Action], results: Sequence[CommandResult], answers: Sequence[Message]
) -> Step:
    """Return the step of these commands; its exit code is the first that is not 0, else 0.

    A step without answers is a submission if it ran commands; its observation is their output.
    """
    texts = [message["content"] for message in answers] or [result.output for result in results]
    codes = [result.exit_code for result in results]
    return Step(
        action="\n".join(str(action.command) for action in actions[: len(results)]) if results else None,
        exit_code=next((code for code in codes if code != 0), 0) if codes else None,
        observation="\n".join(texts),
        submitted=bool(results) and not answers,
    )


def check_templates(scaffold: Scaffold) -> None:
    """Render every template once, before any rollout. Raises ScaffoldError for one that does not render."""
    variables = {**scaffold.variables("/"), "task": "task"}
    first_messages(scaffold, variables)
    variables |= progress_variables(1, 0.0)
    for timed_out in (False, True):
        result = CommandResult(output="output", exit_code=-1 if timed_out else 0, timed_out=timed_out)
        observations(scaffold, [Action(command="command")], [result], variables)
    for truncated in (False, True):
        try:
            parse_actions(scaffold, Reply(content="", node=None, truncated=truncated))
        except FormatError as error:
            format_error_message(scaffold, error, variables)
