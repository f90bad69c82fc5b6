"""The first prompt of an agent, as far as it is known without a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hone.agents.bash import BASH_TOOL, first_messages
from hone.agents.debugger.agent import first_messages as debugger_messages
from hone.agents.debugger.tools import tool_specs
from hone.agents.scaffold import Mode, load_scaffold
from hone.agents.settings import AgentSettings, BashAgentSettings, DebuggerAgentSettings
from hone.policy.reply import ToolSpec
from hone.types import Message, Task

FirstPrompt = Callable[[Task], list[Message]]


def first_prompt(settings: AgentSettings) -> tuple[FirstPrompt, Sequence[ToolSpec]]:
    """Return a function of a task, and the tools that the prompt describes.

    A lower bound: the debugger adds the repository's tree, and a program or package its own instructions.
    Raises ScaffoldError.
    """
    if isinstance(settings, DebuggerAgentSettings):
        tools, native = tool_specs(pdb=settings.pdb), settings.tool_calls == "native"

        def of_debugger(task: Task) -> list[Message]:
            return debugger_messages(task.problem, "", tools, pdb=settings.pdb, native=native)

        return of_debugger, tools if native else ()
    if isinstance(settings, BashAgentSettings) and settings.kind == "bash":
        scaffold = load_scaffold(settings.prompts)

        def of_bash(task: Task) -> list[Message]:
            variables = scaffold.variables(task.environment.workdir)
            return first_messages(scaffold, {**variables, "task": task.problem})

        return of_bash, [BASH_TOOL] if scaffold.mode is Mode.TOOLS else ()
    return lambda task: [{"role": "user", "content": task.problem}], ()
