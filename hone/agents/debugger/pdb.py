"""The tool pdb: one command per call, one request to the server, one observation.

Breakpoints are stored here, outside the sandbox, so that they survive edits and new sessions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hone.agents.debugger.client import Client, ServerLost

ONE_COMMAND = "Multiple commands are not supported. Only the first command will be executed."
RESTARTING = "Reached the end of the program. Restarting the debugging session."
NOT_RUNNING = (
    "PDB session is not running. Please start it first using command='start', for example:\n"
    "  pdb(command='start', runner='python', file='app.py')\n"
    "  pdb(command='start', runner='pytest', file='tests/test_app.py')"
)
_RESTARTS = ("start", "restart", "run")
RESTART_TIMEOUT_S = 60.0  # at least, for the first stop after a restart
SETTLE_S = 20.0  # to interrupt a program, and to kill it
_FAILED = "Failure calling pdb:\n"
# An error after one of these means that the command itself was wrong.
_LISTED_AFTER = {"b", "break", "tbreak", "cl", "clear", "condition", "ignore", "enable", "disable"}
_OWN_ERRORS = _LISTED_AFTER | {
    "unt", "until", "j", "jump", "u", "up", "d", "down", "undisplay",
    "q", "quit", "exit", "EOF", "interact", "debug", "commands", "source",
}  # fmt: skip
_STEPS = {"n", "next", "s", "step"}  # pdb prints the new line itself: no context is added


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    path: str  # absolute, links resolved
    line: int  # from 1
    condition: str = ""
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0  # hits to pass before the program stops


_BREAKPOINT = TypeAdapter(Breakpoint)


class Pdb:
    """The debugging session of one rollout."""

    def __init__(self, client: Client, workdir: str, timeout_s: float) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()
        self._client, self._workdir, self.timeout_s = client, workdir, timeout_s
        self._program: dict[str, str] | None = None
        self._running = False
        self._stale = False  # the code was edited since the program was started
        self._frame: Any = None

    def edited(self, path: str, kept: list[list[int]]) -> None:
        """Move the breakpoints after an edit; the next command restarts the program."""
        self.breakpoints = shift_breakpoints(self.breakpoints, path, kept)
        self._stale = self._running

    def ended(self) -> None:
        """Note that no program runs; breakpoints and the program to run are kept."""
        self._running = self._stale = False
        self._frame = None

    @property
    def _restart_timeout_s(self) -> float:
        return max(self.timeout_s, RESTART_TIMEOUT_S)

    async def use(self, command: str, runner: str | None, file: str | None) -> tuple[str, bool]:
        """Return the observation, and whether the command succeeded. Raises SandboxLost."""
        command = command.strip()
        if not command:
            return f"{_FAILED}Empty commands are not allowed.", False
        command, note = _first_command(command)
        word = _word(command)
        starts = word in _RESTARTS
        if starts and word == command and (refusal := self._set_program(command, runner, file)):
            return f"{_FAILED}{refusal}", False
        if not starts and runner and file:
            self._program = {"runner": runner, "file": file}
        if self._program is None or (not self._running and not (starts or (runner and file))):
            return f"{_FAILED}{NOT_RUNNING}", False
        try:
            answer = await self._client.ask(
                "pdb",
                2 * self.timeout_s + self._restart_timeout_s + SETTLE_S,
                program=self._program,
                breakpoints=[dataclasses.asdict(each) for each in self.breakpoints],
                fresh=starts or self._stale,
                line=None if starts else command,
                timeout_s=self.timeout_s,
                restart_timeout_s=self._restart_timeout_s,
            )
        except ServerLost as lost:
            self.ended()
            return f"{_FAILED}The debugger was lost: {lost}. Start the session again.", False
        return self._observe(answer, command, note, starts)

    def _set_program(self, command: str, runner: str | None, file: str | None) -> str | None:
        """Set the program to run. Returns an error if an argument is missing."""
        if runner and file:
            self._program = {"runner": runner, "file": file.strip()}
        elif runner or file:
            missing = "file" if runner else "runner"
            return f"The '{missing}' parameter is REQUIRED with command='{command}'."
        elif self._program is None:
            return f"The 'runner' and 'file' parameters are REQUIRED with command='{command}'."
        return None

    def _observe(self, answer: dict[str, Any], command: str, note: str, starts: bool) -> tuple[str, bool]:
        stale, self._stale = self._stale, False
        self._running = bool(answer.get("running"))
        if "error" in answer:
            self.ended()
            return f"{_FAILED}{answer['error']}", False
        parts = [note] if note else []
        started, done = answer.get("started"), answer.get("command")
        if started is not None:
            self._take_breakpoints(started)
            if started["ending"] is not None:
                self.ended()
                return f"{_FAILED}{_output(started)}\n{_ending_text(started, 'start', self.timeout_s)}", False
            if starts or not stale:
                parts.append(self._started(started))
            else:
                parts.append("The code was edited: the program was started again before this command.")
            self._frame = started["frame"]
        ok = True
        if done is not None:
            text, ok = self._done(done, command)
            parts.append(text)
        return "\n".join(parts), ok

    def _take_breakpoints(self, reply: dict[str, Any]) -> None:
        self.breakpoints = parse_breakpoints(reply.get("breakpoints"))

    def _started(self, reply: dict[str, Any]) -> str:
        return (
            f"PDB session started with: {entry_point(self._program or {})}\n{_output(reply)}\n"
            f"Breakpoints:\n{listing(self.breakpoints, self._workdir)}\n\n"
            f"Context around the current frame:\n{reply.get('context')}\n"
        )

    def _done(self, reply: dict[str, Any], command: str) -> tuple[str, bool]:
        word, output = _word(command), _output(reply)
        self._take_breakpoints(reply)
        if reply["ending"] is not None:
            return self._over(reply, command), reply["ending"] == "ended"
        timed_out = f"\n{_ending_text(reply, command, self.timeout_s)}" if reply["timed_out"] else ""
        if word in _OWN_ERRORS and output.startswith("*** "):
            return f"Invalid pdb command: {command}\n{output}{timed_out}", False
        if command in ("b", "break"):
            return f"Breakpoints:\n{listing(self.breakpoints, self._workdir)}\n", True
        if command in ("cl", "clear"):
            return f"{output}\n", True
        text = f"Pdb command output:\n{output}{timed_out}\n"
        if word in _LISTED_AFTER:
            text += f"\nAll breakpoints:\n{listing(self.breakpoints, self._workdir)}\n"
        return text + self._moved(reply, word), not reply["timed_out"]

    def _moved(self, reply: dict[str, Any], word: str) -> str:
        """Return the frame and the lines around it if the command changed the frame, else ""."""
        frame, before = reply.get("frame"), self._frame
        self._frame = frame
        if frame == before or not isinstance(frame, dict):
            return ""
        where = (
            f"{shown(str(frame.get('file')), self._workdir)}({frame.get('line')}){frame.get('function')}()"
        )
        text = f"\nCurrent frame:\n{where}\n"
        if word not in _STEPS:
            text += f"\nContext around the current frame:\n{reply.get('context')}\n"
        return text

    def _over(self, reply: dict[str, Any], command: str) -> str:
        """Return the observation of a command that ended the program, which was then restarted."""
        ending = _ending_text(reply, command, self.timeout_s)
        text = "\n".join(filter(None, (f"Pdb command output:\n{_output(reply)}", ending, RESTARTING))) + "\n"
        again = reply.get("again") or {}
        if again.get("ending") is None and "error" not in again:
            self._take_breakpoints(again)
            self._frame = None
            return f"{text}{_output(again)}\n{self._moved(again, 'start')}"
        self.ended()
        if "error" in again:
            return f"{text}{_FAILED}{again['error']}"
        return f"{text}{_FAILED}{_output(again)}\n{_ending_text(again, 'start', self._restart_timeout_s)}"


def entry_point(program: dict[str, str]) -> str:
    """Return the equivalent shell command."""
    file = program.get("file", "")
    if program.get("runner") == "python":
        return f"python -m pdb {file}"
    if "::" in file:
        return f"python -m pytest -sq {file} --trace --tb=short"
    return f"python -m pdb -m pytest -sq {file}"


def _first_command(command: str) -> tuple[str, str]:
    """Return the first of several commands, and a note if there are more; `p` may print a `;`."""
    if _word(command) in ("p", "pp") or command.startswith("print("):
        return command, ""
    first = re.split(r"[\n;]", command)[0].strip()
    return (first, "") if first == command or not first else (first, ONE_COMMAND)


def _word(command: str) -> str:
    """Return the command's name, as pdb parses it."""
    found = re.match(r"[A-Za-z]+|.", command.strip())
    return found.group() if found else ""


def _output(reply: dict[str, Any]) -> str:
    """Return the program's output, then the debugger's."""
    printed, debugger = str(reply.get("printed", "")), str(reply.get("debugger", ""))
    if printed and debugger and not printed.endswith("\n"):
        printed += "\n"
    return (printed + debugger).strip("\n")


def _ending_text(reply: dict[str, Any], command: str, timeout_s: float) -> str:
    """Return a sentence on a timeout or an exit; "" if the program just stopped."""
    ending, code = reply["ending"], reply.get("code")
    if ending == "killed":
        return (
            f"The command `{command}` has timed out after {timeout_s:g} s. The program could not be "
            "interrupted and was killed."
        )
    if ending == "closed":
        return "The program closed the debugger's channel and was killed."
    if ending == "exited":
        return f"The program left with exit code {code}, without its debugger."
    if reply["timed_out"]:
        return f"The command `{command}` has timed out after {timeout_s:g} s. The program was interrupted."
    if ending == "ended" and command == "start":
        return f"The program ended with exit code {code} before the debugger could stop in it."
    return ""


def parse_breakpoints(sent: Any) -> tuple[Breakpoint, ...]:
    """Return the breakpoints that a server sent; invalid entries are dropped."""
    found: list[Breakpoint] = []
    for each in sent if isinstance(sent, list) else []:
        with contextlib.suppress(ValidationError):
            found.append(_BREAKPOINT.validate_python(each))
    return tuple(found)


def shift_breakpoints(
    breakpoints: Sequence[Breakpoint], path: str, kept: Sequence[Sequence[int]]
) -> tuple[Breakpoint, ...]:
    """Return the breakpoints after an edit of `path`: each moves with its line or is removed with it.

    Args:
        kept: the runs of unchanged lines: (first line before, first line after, count).

    Example: lines 4 and 5 of 9 became three: kept = [(1, 1, 3), (6, 7, 4)]; a breakpoint at 8 moves to 9.
    """
    moved: list[Breakpoint] = []
    for each in breakpoints:
        if each.path != path:
            moved.append(each)
            continue
        for before, after, count in kept:
            if before <= each.line < before + count:
                moved.append(dataclasses.replace(each, line=each.line - before + after))
                break
    return tuple(moved)


def listing(breakpoints: Sequence[Breakpoint], workdir: str) -> str:
    """Return one line of text per breakpoint, sorted by file and line."""
    if not breakpoints:
        return "No breakpoints are set."
    ordered = sorted(breakpoints, key=lambda each: (each.path, each.line))
    return "\n".join(_breakpoint_line(each, workdir) for each in ordered)


def _breakpoint_line(each: Breakpoint, workdir: str) -> str:
    notes = [
        *([f"if {each.condition}"] if each.condition else []),
        *(["once"] if each.temporary else []),
        *([] if each.enabled else ["disabled"]),
        *([f"passed {each.ignore} times first"] if each.ignore else []),
    ]
    where = f"line {each.line} in {shown(each.path, workdir)}"
    return f"{where} ({', '.join(notes)})" if notes else where


def shown(path: str, workdir: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    return path.removeprefix(workdir.rstrip("/") + "/")
