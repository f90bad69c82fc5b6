"""The specifications of the tools, as the model sees them."""

from __future__ import annotations

from typing import Any

from hone.policy.reply import ToolSpec

_RANGE: dict[str, Any] = {
    "start": {
        "type": "integer",
        "description": "The first line to replace, counted from 1. Without it, the whole file is replaced.",
    },
    "end": {
        "type": "integer",
        "description": "The last line to replace, included. Without it, only line `start` is.",
    },
    "new_code": {
        "type": "string",
        "description": "What stands there afterwards, with its indentation. Empty text deletes the lines.",
    },
}

PDB = {
    "name": "pdb",
    "description": (
        "The Python debugger. command='start' with runner and file starts a program under it: "
        "runner='python' for a script (file='src/app.py'), runner='pytest' for tests "
        "(file='tests/test_app.py', or one of them, file='tests/test_app.py::test_name'). After that, give "
        "one pdb command per call: b file.py:12 (on a line inside a function, not on its `def`; a condition "
        "may follow a comma), tbreak, cl, c, n, s, r, unt, u, d, w, l, ll, a, p x, pp x, whatis x, "
        "display x, !statement. Breakpoints are kept when the program is started again and move along with "
        "edits; after an edit, the next command starts the program again."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "`start`, `restart`, or one command of pdb."},
            "runner": {
                "type": "string",
                "enum": ["python", "pytest"],
                "description": "How to run the file; needed with command='start'.",
            },
            "file": {
                "type": "string",
                "description": "The file to run, relative to the repository's root; needed with "
                "command='start'.",
            },
        },
        "required": ["command"],
    },
}
VIEW = {
    "name": "view",
    "description": "Show a file, 110 lines at most in one call, or what is in a directory.",
    "parameters": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Relative to the repository's root."},
            "start": {"type": "integer", "description": "The first line to show, counted from 1."},
            "end": {"type": "integer", "description": "The last line to show, included."},
            "include_line_numbers_and_breakpoints": {
                "type": "boolean",
                "description": "Whether lines are numbered, and those with a breakpoint marked with B. "
                "Default: true.",
            },
        },
        "required": ["path"],
    },
}
EDIT = {
    "name": "edit",
    "description": "Replace lines start to end of a file with new_code; a file that is not there is made.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file to edit."}, **_RANGE},
        "required": ["path", "new_code"],
    },
}
REWRITE = {
    "name": "rewrite",
    "description": "Replace lines start to end of a file that is there with new_code.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file to rewrite."}, **_RANGE},
        "required": ["path", "new_code"],
    },
}
EVAL = {
    "name": "eval",
    "description": "Run the tests that are there, and show what failed.",
    "parameters": {"type": "object", "properties": {}},
}
GREP = {
    "name": "grep",
    "description": "Search files for a regular expression.",
    "parameters": {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "A regular expression of Python's re module."},
            "path": {
                "type": "string",
                "description": "A file, a directory or a glob pattern such as src/**/*.py; default: all.",
            },
            "max_results": {"type": "integer", "description": "The most matches to show; default 100."},
        },
        "required": ["pattern"],
    },
}
LISTDIR = {
    "name": "listdir",
    "description": "Show what is in a directory.",
    "parameters": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The directory; default: the repository's root."},
            "depth": {"type": "integer", "description": "How many levels to show; default 1."},
        },
    },
}
SUBMIT = {
    "name": "submit",
    "description": "Hand in the repository as it stands. This ends your work.",
    "parameters": {"type": "object", "properties": {}},
}


def tool_specs(*, pdb: bool) -> list[ToolSpec]:
    """Return the agent's tools; without pdb, those of the ablation."""
    return [*([PDB] if pdb else []), VIEW, EDIT, REWRITE, GREP, LISTDIR, EVAL, SUBMIT]
