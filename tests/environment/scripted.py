"""A sandbox and a provider in memory: commands end as a test says, and are recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hone.sandbox import ExecResult, Health, Sandbox, SandboxSpec
from hone.sandbox.contract import Command, WriteContext


def ended(
    exit_code: int = 0,
    stdout: bytes = b"",
    stderr: str | bytes = b"",
    *,
    stdout_bytes: int | None = None,
    timed_out: bool = False,
) -> ExecResult:
    """Return the result of a command; `stdout_bytes` is more than `stdout` when it was truncated."""
    errors = stderr.encode() if isinstance(stderr, str) else stderr
    written = len(stdout) if stdout_bytes is None else stdout_bytes
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout,
        stderr=errors,
        stdout_bytes=written,
        stderr_bytes=len(errors),
        timed_out=timed_out,
        seconds=0.0,
    )


class ScriptedSandbox(Sandbox):
    """Answers each command by a function of it."""

    def __init__(self, answer: Callable[[Command], ExecResult], spec: SandboxSpec | None = None) -> None:
        self.id, self.spec, self.enforced = "scripted", spec or SandboxSpec(workdir="/testbed"), {}
        self.answer = answer
        self.commands: list[Command] = []
        self.downloads: list[tuple[str, Path]] = []
        self.closed = False

    async def _exec(self, command: Command) -> ExecResult:
        self.commands.append(command)
        return self.answer(command)

    async def close(self) -> None:
        self.closed = True

    async def read(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None: ...
    async def upload(self, source: Path, target: str) -> None: ...

    async def download(self, source: str, target: Path) -> None:
        self.downloads.append((source, target))


class ScriptedProvider:
    """Starts scripted sandboxes."""

    def __init__(self, answer: Callable[[Command], ExecResult] = lambda command: ended()) -> None:
        self.answer = answer
        self.started: list[ScriptedSandbox] = []

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started.append(ScriptedSandbox(self.answer, spec))
        return self.started[-1]

    async def health(self) -> Health:
        return Health(checks=())

    async def images(self) -> list[str]:
        return []

    async def digest(self, image: str) -> str:
        return ""

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        return None

    async def reconcile(self) -> int:
        return 0

    async def __aenter__(self) -> ScriptedProvider:
        return self

    async def __aexit__(self, *exc: object) -> None: ...
