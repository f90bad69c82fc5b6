"""Run one command of a policy in a sandbox, with its result in mini-swe-agent's terms."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.sandbox.contract import ExecResult, Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    output: str  # standard output and standard error, interleaved
    exit_code: int  # -1: the command timed out or could not be run
    timed_out: bool = False
    exception: str = ""  # why the command has no exit code of its own

    @property
    def variables(self) -> dict[str, Any]:
        """Return the template variable `output`."""
        info = f"An error occurred while executing the command: {self.exception}" if self.exception else ""
        return {"output": self.output, "returncode": self.exit_code, "exception_info": info}

    def submits(self, sentinels: Sequence[str]) -> bool:
        """Return whether the command succeeded and the first line of its output is a sentinel."""
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
) -> CommandResult:
    """Run `command`, which may be any JSON value that a policy wrote. Raises SandboxLost."""
    problem = _argument_error(command)
    if problem:
        return CommandResult(output="", exit_code=-1, exception=problem)
    result = await sandbox.exec(
        [*interpreter, command], timeout_s=timeout_s, cwd=cwd, env=env, merge_stderr=True
    )
    output = output_text(result)
    if result.timed_out:
        exception = str(subprocess.TimeoutExpired(command, timeout_s))
        return CommandResult(output=output, exit_code=-1, timed_out=True, exception=exception)
    return CommandResult(output=output, exit_code=result.exit_code)


def output_text(result: ExecResult) -> str:
    """Return standard output as text, with a note where the sandbox cut it (half head, half tail).

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


def _argument_error(command: Any) -> str:
    """Return why no process can be started with this argument, as Python reports it; "" when one can."""
    if not isinstance(command, str):
        return f"expected str, bytes or os.PathLike object, not {type(command).__name__}"
    try:
        command.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can encode
        return str(error)
    return "embedded null byte" if "\0" in command else ""
