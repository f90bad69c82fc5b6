"""A provider whose sandboxes do nothing, at once or when told to, for what only the server decides."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hone.sandbox import (
    Command,
    ExecResult,
    Health,
    ProviderUnavailable,
    Sandbox,
    SandboxLost,
    SandboxSpec,
)
from hone.sandbox.contract import WriteContext


class IdleSandbox(Sandbox):
    """`sleep` waits and `flood` writes for ever; others end at once, their words and input their output."""

    def __init__(self, number: int, spec: SandboxSpec, provider: IdleProvider) -> None:
        self.id, self.spec, self.enforced = f"idle-{number}", spec, {"memory": "none"}
        self._provider = provider
        self._closed = asyncio.Event()
        self.files: dict[str, bytes] = {}

    async def _exec(self, command: Command) -> ExecResult:
        argv, on_output = command.argv, command.on_output
        if self._closed.is_set():
            raise SandboxLost("it was closed")
        self._provider.commands.append(argv)
        try:
            if argv[0] == "sleep":
                await self._closed.wait()
                raise SandboxLost("it was closed")
            while argv[0] == "flood" and on_output:
                on_output("stdout", b"x" * (1 << 20))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._provider.cancelled.append(argv)
            raise
        said = " ".join(argv).encode() + command.stdin
        if on_output:
            on_output("stdout", said)
        return ExecResult(
            exit_code=0,
            stdout=said,
            stderr=b"",
            stdout_bytes=len(said),
            stderr_bytes=0,
            timed_out=False,
            seconds=0.001,
        )

    async def read(self, path: str) -> bytes:
        return self.files[path]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.files[path] = data

    async def upload(self, source: Path, target: str) -> None:
        self.files[target] = await asyncio.to_thread(source.read_bytes)

    async def download(self, source: str, target: Path) -> None:
        await asyncio.to_thread(target.write_bytes, self.files[source])

    async def close(self) -> None:
        self._closed.set()
        self._provider.closings += 1
        await self._provider.may_close.wait()
        if self._provider.close_failures:
            self._provider.close_failures -= 1
            raise ProviderUnavailable("not now", retryable=True)
        self._provider.living.discard(self)


class IdleProvider:
    def __init__(self) -> None:
        self.living: set[IdleSandbox] = set()
        self.started = self.closings = self.close_failures = 0
        self.commands: list[list[str]] = []
        self.cancelled: list[list[str]] = []
        self.broken = ""
        self.may_start, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_start.set()
        self.may_close.set()

    def forget(self) -> None:
        """Reset the counts, without those of the first probe."""
        self.started = self.closings = 0
        self.commands.clear()

    async def start(self, spec: SandboxSpec) -> IdleSandbox:
        await self.may_start.wait()
        if self.broken:
            raise ProviderUnavailable(self.broken, retryable=True)
        self.started += 1
        sandbox = IdleSandbox(self.started, spec, self)
        self.living.add(sandbox)
        return sandbox

    async def health(self) -> Health:
        return Health(checks=())

    async def images(self) -> list[str]:
        return ["host"]

    async def digest(self, image: str) -> str:
        return ""

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        return None

    async def reconcile(self) -> int:
        return 0

    async def __aenter__(self) -> IdleProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert not self.living, "the node left sandboxes behind"
