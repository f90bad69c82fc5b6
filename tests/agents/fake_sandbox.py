"""A sandbox in memory: commands are functions, and time is the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from hone.sandbox.contract import ExecResult, SandboxSpec

Answer = str | int | float  # output of a success, exit code, or seconds of a command that prints nothing


class FakeSandbox:
    """Answers commands from a table, by default with an empty success; records its calls."""

    def __init__(self, answers: Mapping[str, Answer] | Callable[[str], Answer] | None = None) -> None:
        self.spec = SandboxSpec()
        self.commands: list[str] = []
        self.timeouts: list[float] = []
        self._answers = answers or {}

    async def exec(self, command: Sequence[str], *, timeout_s: float, **options: object) -> ExecResult:
        text = command[-1]
        self.commands.append(text)
        self.timeouts.append(timeout_s)
        answer = self._answers(text) if callable(self._answers) else self._answers.get(text, "")
        output, exit_code, timed_out = b"", 0, False
        if isinstance(answer, str):
            output = answer.encode()
        elif isinstance(answer, int):
            exit_code = answer
        else:
            timed_out = answer >= timeout_s
            await asyncio.sleep(min(answer, timeout_s))
            exit_code = -1 if timed_out else 0
        return ExecResult(
            exit_code=exit_code,
            stdout=output,
            stderr=b"",
            stdout_bytes=len(output),
            stderr_bytes=0,
            timed_out=timed_out,
            seconds=0.0,
        )
