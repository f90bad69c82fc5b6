"""A sandbox whose process 1 is Hone's init process: implements the contract over its channel."""

from __future__ import annotations

import asyncio
import os
import posixpath
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hone.sandbox.contract import Command, ExecResult, Sandbox, SandboxLost, SandboxSpec
from hone.sandbox.init import transfer
from hone.sandbox.init.channel import BROKEN, Channel
from hone.sandbox.init.in_sandbox import wire

READ_MAX = 256 << 20  # bytes of one `read`; a sparse file may have any size
_TOTAL_MAX = 1 << 63  # bytes of output
_ANSWER_S = 30.0  # on top of a command's timeout, until a sandbox without a reply is ended


class InitSandbox(Sandbox):
    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        enforced: Mapping[str, str],
        env: Mapping[str, str],
        on_close: Callable[[], Awaitable[None]],
        on_snapshot: Callable[[Path, bool], Awaitable[None]] | None = None,
    ) -> None:
        """`env` is the image's own environment, at least PATH and HOME; `spec.env` is added to it."""
        self.id = sandbox_id
        self.spec = spec
        self.enforced = enforced
        self._channel = channel
        self._on_close = on_close
        self._on_snapshot = on_snapshot
        self._env = {**env, **spec.env}

    async def _exec(self, command: Command) -> ExecResult:
        pairs = [os.fsencode(word) for pair in (self._env | command.env).items() for word in pair]
        words = [os.fsencode(word) for word in command.argv]
        fields = wire.pack(self._inside(command.cwd), str(len(words)).encode(), *words, *pairs)
        keep = self.spec.limits.output_kib << 10
        request = self._channel.open()
        flags = wire.MERGE_FLAG * command.merge_stderr | wire.LIVE_FLAG * (command.on_output is not None)
        if command.on_output:
            self._channel.listen(request, command.on_output)
        head = wire.EXEC.pack(command.timeout_s, keep, flags)
        try:
            for start in range(0, len(command.stdin), wire.CHUNK):
                self._channel.send(wire.STDIN_KIND, request, command.stdin[start : start + wire.CHUNK])
                await asyncio.sleep(0)  # a long input does not hold up the event loop
            self._channel.send(wire.EXEC_KIND, request, head, fields)
            kind, body = await self._channel.reply(request, command.timeout_s + _ANSWER_S)
        except asyncio.CancelledError:
            self._channel.send(wire.CANCEL_KIND, request)
            raise
        try:
            return _parse_result(kind, body, keep, command.timeout_s + _ANSWER_S)
        except (ValueError, struct.error) as error:
            self._channel.abandon(BROKEN)
            raise SandboxLost(f"{BROKEN}: {error}") from error

    def _inside(self, path: str) -> bytes:
        """Return the absolute path inside; relative paths start at workdir."""
        return os.fsencode(posixpath.join(self.spec.workdir, path))

    async def read(self, path: str) -> bytes:
        """Return a file's content. Raises OSError, SandboxError above READ_MAX."""
        chunks: list[bytes] = []
        await transfer.fetch(self._channel, self._inside(path), chunks.append, READ_MAX)
        return b"".join(chunks)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        inside = self._inside(path)
        for start in range(0, max(1, len(data)), wire.CHUNK):
            fields = wire.pack(inside, data[start : start + wire.CHUNK])
            await self._channel.ask(wire.WRITE_KIND, wire.WRITE.pack(start, mode), fields)

    async def upload(self, source: Path, target: str) -> None:
        await transfer.upload(self._channel, source, self._inside(target))

    async def download(self, source: str, target: Path) -> None:
        await transfer.download(self._channel, self._inside(source), target)

    async def snapshot(self, target: Path, *, whole: bool = False) -> None:
        if self._on_snapshot is None:
            await super().snapshot(target, whole=whole)
        else:
            await self._on_snapshot(target, whole)

    async def close(self) -> None:
        self._channel.abandon("it was closed")
        await self._on_close()


def _parse_result(kind: int, body: bytes, keep: int, seconds_max: float) -> ExecResult:
    if kind != wire.RESULT_KIND:
        raise ValueError(f"the reply to a command has kind {kind}")
    code, timed_out, out_total, err_total, seconds, out_size = wire.RESULT.unpack_from(body)
    streams = body[wire.RESULT.size :]
    stdout, stderr = streams[:out_size], streams[out_size:]
    if max(len(stdout), len(stderr)) > keep + 1:
        raise ValueError("more output than the limit")
    if not 0 <= seconds <= seconds_max:  # false for NaN, too
        raise ValueError(f"a command of {seconds} s")
    if max(out_total, err_total) >= _TOTAL_MAX:
        raise ValueError("more output than there can be")
    return ExecResult(
        exit_code=code,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=out_total,
        stderr_bytes=err_total,
        timed_out=bool(timed_out),
        seconds=seconds,
    )
