"""The first messages: role, tools if no chat template describes them, and task."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hone.policy.reply import ToolSpec
from hone.types import Message

_DEBUG = """\
You are a software engineer who repairs Python code with a debugger. A program in the repository below does \
not behave as it should. Find out why by watching it run, and repair it.

Rules:
- Use the pdb tool: start the program or a test under it, set breakpoints inside of functions, step, and \
print values, before you decide what is wrong. Do not guess from reading alone.
- Call exactly one tool in each reply, and wait for its result.
- Repair the cause with rewrite (or edit), as small as it can be; do not rewrite whole files.
- After every rewrite, call eval to run the tests. When something still fails, go back to the debugger.
- Do not change tests to make them pass: the repair is checked by tests that you cannot see.
- When the repair is done, call submit."""

_REWRITE = """\
You are a software engineer who repairs Python code. A program in the repository below does not behave as it \
should. Find out why by reading the code and the results of its tests, and repair it.

Rules:
- Look at the code (view, grep, listdir) and at what fails (eval) before you decide what is wrong.
- Call exactly one tool in each reply, and wait for its result.
- Repair the cause with rewrite (or edit), as small as it can be; do not rewrite whole files.
- After every rewrite, call eval to run the tests. When something still fails, look again.
- Do not change tests to make them pass: the repair is checked by tests that you cannot see.
- When the repair is done, call submit."""

_TEXT_CALLS = """\
The tools, one JSON description in each line:

{tools}

To call a tool, end your reply with a call like this one:

<tool_call>
{{"name": "view", "arguments": {{"path": "app.py", "start": 1, "end": 40}}}}
</tool_call>"""

_TASK = """\
{problem}

The program doesn't behave as intended. Investigate the repository, figure out the root cause, then rewrite \
the code to fix the issue."""


def first_messages(
    problem: str, tree: str, tools: Sequence[ToolSpec], *, pdb: bool, native: bool
) -> list[Message]:
    """Return the system message, with the repository's tree, and the task."""
    parts = [_DEBUG if pdb else _REWRITE]
    if not native:
        parts.append(_TEXT_CALLS.format(tools="\n".join(json.dumps(tool) for tool in tools)))
    if tree:
        parts.append(f"The repository:\n\n{tree}")
    return [
        {"role": "system", "content": "\n\n".join(parts)},
        {"role": "user", "content": _TASK.format(problem=problem.strip())},
    ]
