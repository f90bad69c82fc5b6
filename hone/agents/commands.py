"""One command in a sandbox, and what an observation says of it, in mini-swe-agent's words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.sandbox.contract import ExecResult, Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a command."""

    output: str
    exit_code: int  # -1: it timed out, or could not be run
    timed_out: bool = False
    exception: str = ""  # why it has no exit code of its own

    @property
    def variables(self) -> dict[str, Any]:
        """What a template finds in `output`."""
        told = f"An error occurred while executing the command: {self.exception}" if self.exception else ""
        return {"output": self.output, "returncode": self.exit_code, "exception_info": told}

    def submits(self, sentinels: Sequence[str]) -> bool:
        """Whether it hands in the work: it succeeded, and the first line it printed is a sentinel."""
        if self.exit_code != 0:
            return False
        lines = self.output.lstrip().splitlines()
        return bool(lines) and lines[0].strip() in sentinels


async def run_command(
    sandbox: Sandbox,
    command: Any,
    *,
    interpreter: Sequence[str],
    timeout_s: float,
    cwd: str | None,
    env: Mapping[str, str],
) -> Ran:
    """Run what a policy wrote as a command, whatever that is. Raises SandboxLost."""
    problem = _unrunnable(command)
    if problem:
        return Ran(output="", exit_code=-1, exception=problem)
    result = await sandbox.exec(
        [*interpreter, command], timeout_s=timeout_s, cwd=cwd, env=env, merge_stderr=True
    )
    output = output_text(result)
    if result.timed_out:
        slow = str(subprocess.TimeoutExpired(command, timeout_s))
        return Ran(output=output, exit_code=-1, timed_out=True, exception=slow)
    return Ran(output=output, exit_code=result.exit_code)


def output_text(result: ExecResult) -> str:
    """A command's output as text, with a mark where the sandbox cut it (half head, half tail).

    Line ends are those of Python's text files: `\\r\\n` and `\\r` become `\\n`.
    """
    omitted = result.stdout_bytes - len(result.stdout)
    if omitted <= 0:
        text = result.text
    else:
        middle = len(result.stdout) // 2
        head = result.stdout[:middle].decode("utf-8", "replace")
        tail = result.stdout[middle:].decode("utf-8", "replace")
        text = f"{head}\n[... {omitted} bytes omitted ...]\n{tail}"
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unrunnable(command: Any) -> str:
    """Why no process can be started with this argument; "" when one can."""
    if not isinstance(command, str):
        return f"expected str, bytes or os.PathLike object, not {type(command).__name__}"
    try:
        command.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        return str(error)
    return "embedded null byte" if "\0" in command else ""
