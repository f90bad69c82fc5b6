"""The specifications of the tools, as the model sees them."""

from __future__ import annotations

from typing import Any

from hone.policy.reply import ToolSpec

Argument = tuple[str, str]  # JSON type, description


def _spec(tool: str, description: str, *required: str, **arguments: Argument | dict[str, Any]) -> ToolSpec:
    properties = {
        name: argument if isinstance(argument, dict) else {"type": argument[0], "description": argument[1]}
        for name, argument in arguments.items()
    }
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    return {"name": tool, "description": description, "parameters": parameters}


_LINES: dict[str, Argument] = {
    "start": (
        "integer",
        "The first line to replace, counted from 1. Without it, the whole file is replaced.",
    ),
    "end": ("integer", "The last line to replace, included. Without it, only line `start` is."),
    "new_code": (
        "string",
        "What stands there afterwards, with its indentation. Empty text deletes the lines.",
    ),
}
_RUNNER = {
    "type": "string",
    "enum": ["python", "pytest"],
    "description": "How to run the file; needed with command='start'.",
}

PDB = _spec(
    "pdb",
    "The Python debugger. command='start' with runner and file starts a program under it: "
    "runner='python' for a script (file='src/app.py'), runner='pytest' for tests "
    "(file='tests/test_app.py', or one of them, file='tests/test_app.py::test_name'). After that, give "
    "one pdb command per call: b file.py:12 (on a line inside a function, not on its `def`; a condition "
    "may follow a comma), tbreak, cl, c, n, s, r, unt, u, d, w, l, ll, a, p x, pp x, whatis x, "
    "display x, !statement. Breakpoints are kept when the program is started again and move along with "
    "edits; after an edit, the next command starts the program again.",
    "command",
    command=("string", "`start`, `restart`, or one command of pdb."),
    runner=_RUNNER,
    file=(
        "string",
        "The file to run, relative to the repository's root; needed with command='start'.",
    ),
)
VIEW = _spec(
    "view",
    "Show a file, 110 lines at most in one call, or what is in a directory.",
    "path",
    path=("string", "Relative to the repository's root."),
    start=("integer", "The first line to show, counted from 1."),
    end=("integer", "The last line to show, included."),
    include_line_numbers_and_breakpoints=(
        "boolean",
        "Whether lines are numbered, and those with a breakpoint marked with B. Default: true.",
    ),
)
EDIT = _spec(
    "edit",
    "Replace lines start to end of a file with new_code; a file that is not there is made.",
    "path",
    "new_code",
    path=("string", "The file to edit."),
    **_LINES,
)
REWRITE = _spec(
    "rewrite",
    "Replace lines start to end of a file that is there with new_code.",
    "path",
    "new_code",
    path=("string", "The file to rewrite."),
    **_LINES,
)
EVAL = _spec("eval", "Run the tests that are there, and show what failed.")
GREP = _spec(
    "grep",
    "Search files for a regular expression.",
    "pattern",
    pattern=("string", "A regular expression of Python's re module."),
    path=("string", "A file, a directory or a glob pattern such as src/**/*.py; default: all."),
    max_results=("integer", "The most matches to show; default 100."),
)
LISTDIR = _spec(
    "listdir",
    "Show what is in a directory.",
    path=("string", "The directory; default: the repository's root."),
    depth=("integer", "How many levels to show; default 1."),
)
SUBMIT = _spec("submit", "Hand in the repository as it stands. This ends your work.")


def tool_specs(*, pdb: bool) -> list[ToolSpec]:
    """Return the agent's tools; without pdb, those of the ablation."""
    return [*([PDB] if pdb else []), VIEW, EDIT, REWRITE, GREP, LISTDIR, EVAL, SUBMIT]
