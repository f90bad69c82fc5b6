"""The tools of one rollout, and their specifications as the model sees them."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any

from hone.agents.debugger.client import Client, ServerLost
from hone.agents.debugger.pdb import Breakpoint, Pdb
from hone.policy.reply import ToolSpec

TOOL_TIMEOUT_S = 30.0  # of a tool that only reads or writes files
MATCHES_MAX = 100  # by default

Result = tuple[str, int]  # the observation, and the exit code: 0 on success


class Tools:
    """Every tool raises SandboxLost."""

    def __init__(self, client: Client, workdir: str, timeout_s: float) -> None:
        self._client, self.timeout_s = client, timeout_s
        self.pdb = Pdb(client, workdir, timeout_s)
        self._by_name: dict[str, Callable[..., Awaitable[Result]]] = {
            "pdb": self._use_pdb,
            "view": self._view,
            "edit": functools.partial(self._rewrite, create=True),
            "rewrite": functools.partial(self._rewrite, create=False),
            "grep": self._grep,
            "listdir": self._listdir,
            "eval": self._eval,
        }

    async def use(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run a tool other than submit; see `hone.agents.debugger.agent.check_arguments`."""
        try:
            return await self._by_name[name](**arguments)
        except ServerLost as lost:
            self.pdb.ended()
            return f"The tool {name} was lost with the server that it runs in: {lost}. Try again.", 1

    async def tree(self) -> str:
        """Return the top of the repository for the prompt; "" if it cannot be listed."""
        try:
            return str((await self._files("listdir", path=".", depth=1)).get("tree", ""))
        except ServerLost:
            return ""

    async def _files(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self._client.ask("files", TOOL_TIMEOUT_S, tool=tool, **arguments)

    async def _use_pdb(self, command: str, runner: str | None, file: str | None) -> Result:
        text, ok = await self.pdb.use(command, runner, file)
        return text, int(not ok)

    async def _view(
        self, path: str, start: int | None, end: int | None, include_line_numbers_and_breakpoints: bool | None
    ) -> Result:
        if not path.strip():
            return "Invalid file path. Please specify a valid file path.", 1
        found = await self._files("view", path=path, start=start, end=end)
        if "error" in found:
            return f"View failed. Error message:\n{found['error']}", 1
        if "tree" in found:
            return found["tree"], 0
        if found["total"] == 0:
            return f"The file `{path}` is empty.", 0
        numbered = include_line_numbers_and_breakpoints is not False
        return view_text(path, found, self.pdb.breakpoints if numbered else None), 0

    async def _rewrite(self, *, create: bool, path: str, **arguments: Any) -> Result:
        done = await self._files("rewrite", path=path, create=create, **arguments)
        if "error" in done:
            return f"{'Edit' if create else 'Rewrite'} failed. Error message:\n{done['error']}\n", 1
        self.pdb.edited(done["path"], done["kept"])
        return f"The file `{path}` has been updated successfully.\n\nDiff:\n\n{done['diff']}", 0

    async def _grep(self, pattern: str, path: str | None, max_results: int | None) -> Result:
        if not pattern:
            return "Pattern cannot be empty.", 1
        limit = MATCHES_MAX if max_results is None else max(1, min(max_results, 10 * MATCHES_MAX))
        found = await self._client.ask("grep", TOOL_TIMEOUT_S, pattern=pattern, path=path or "", limit=limit)
        if "error" in found:
            return f"Grep error: {found['error']}", 1
        return grep_text(pattern, path, found), 0

    async def _listdir(self, path: str | None, depth: int | None) -> Result:
        found = await self._files("listdir", path=path or ".", depth=1 if depth is None else depth)
        if "error" in found:
            return f"Error listing directory '{path or '.'}': {found['error']}", 1
        return found["tree"], 0

    async def _eval(self) -> Result:
        ran = await self._client.ask("eval", self.timeout_s, timeout_s=self.timeout_s)
        self.pdb.ended()
        if "error" in ran:
            return f"Eval failed. Error message:\n{ran['error']}", 1
        return eval_text(ran, self.timeout_s), -1 if ran["exit_code"] is None else ran["exit_code"]


def view_text(path: str, found: dict[str, Any], breakpoints: tuple[Breakpoint, ...] | None) -> str:
    """Return a file's lines in a fence; without numbers and marks if `breakpoints` is None."""
    lines, first = found["lines"], found["first"]
    last, note = first + len(lines) - 1, ""
    if breakpoints is not None:
        marked = {each.line for each in breakpoints if each.path == found["path"]}
        lines = [
            f"{'B' if number in marked else '':<2}{number:>4} {line}"
            for number, line in enumerate(lines, start=first)
        ]
        note = " B indicates breakpoint before a certain line of code." if breakpoints else ""
    cut = f"\n\n... (truncated, showing first {len(lines)} lines of the selected range)"
    return (
        f"Viewing `{path}`, lines {first}-{last} of {found['total']} total lines.{note}\n\n"
        f"```\n{chr(10).join(lines)}\n```\n{cut if found['truncated'] else ''}\n"
    )


def grep_text(pattern: str, path: str | None, found: dict[str, Any]) -> str:
    matches = found["matches"]
    if not matches:
        return f"No matches found for pattern '{pattern}' in {path or 'repository'}."
    if found["limited"]:
        lines = [f"Showing first {len(matches)} matches (search limit reached):"]
    else:
        lines = [f"Found {len(matches)} matches:"]
    current = None
    for file, number, text in matches:
        if file != current:
            lines += ["", f"=== {file} ==="]
            current = file
        lines.append(f"{number:>4}: {text}")
    return "\n".join(lines)


def eval_text(ran: dict[str, Any], timeout_s: float) -> str:
    """Return the tests' output without times and versions, then how they ended."""
    lines = [
        re.sub(r" in \d+(\.\d+)?s( \([\d:]+\))?(?=$| =)", "", line)
        for line in str(ran["printed"]).strip("\n").split("\n")
        if not re.match(r"(platform |rootdir: |plugins: |cachedir: |configfile: )", line)
    ]
    text = "\n".join(re.sub(r"^([=-])\1{3,}$", r"\1\1\1\1", line) for line in lines)
    if ran["exit_code"] is None:
        return f"{text}\nThe tests have timed out after {timeout_s:g} s and were killed."
    return f"{text}\npytest ended with exit code {ran['exit_code']}."


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
