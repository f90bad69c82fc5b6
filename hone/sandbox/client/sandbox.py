"""The sandbox contract over HTTP: a sandbox on a node."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import aiohttp

from hone.sandbox import trees
from hone.sandbox.client.api import Unreachable, connect
from hone.sandbox.client.tunnel import ClientTunnel
from hone.sandbox.contract import (
    Command,
    ExecResult,
    OnOutput,
    ProviderUnavailable,
    Sandbox,
    SandboxLost,
    SandboxSpec,
    TooLarge,
)
from hone.sandbox.remote.errors import from_body
from hone.sandbox.remote.wire import (
    EXEC_LINE,
    IDEMPOTENCY_HEADER,
    INPUT_HEADER,
    Beat,
    ErrorBody,
    ExecReply,
    ExecRequest,
    StartReply,
)

MARGIN_S = 60.0  # added to a command's own limit before the node counts as unreachable
FILES_S = 600.0  # time limit for one file or tree
START_S = 660.0  # time limit of a start after its uploads
_CANCEL_S = 5.0
_INPUT_IN_JSON = 1 << 16  # bytes of a standard input above which it follows the JSON

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class RemoteSandbox(Sandbox):
    """A sandbox on a node. An unreachable node means SandboxLost.

    Commands carry an idempotency key, so that a lost reply can be requested again. With `on_output` they
    cannot: a broken connection ends the command and raises SandboxLost.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        node_url: str,
        sandbox_id: str,
        capability: str,
        spec: SandboxSpec,
        enforced: Mapping[str, str],
        on_close: Callable[[], Awaitable[None]],
        beat: Beat | None = None,
    ) -> None:
        """
        Args:
            session: must outlive the sandbox.
            spec: with the actual `workdir`.
            on_close: destroys the sandbox or closes its lease; called by the first `close`.
            beat: renews its lease, if it has one.
        """
        self.id = sandbox_id
        self.spec = spec
        self.enforced = enforced
        self.beat = beat
        self._node = connect(session, f"{node_url.rstrip('/')}/v1/sandboxes/{sandbox_id}", capability)
        self._on_close = on_close
        self._closed = self._released = False
        self._loss: asyncio.Future[SandboxLost] = asyncio.get_running_loop().create_future()
        self._tunnel: ClientTunnel | None = None

    async def start(self, contents: Mapping[str, Path]) -> None:
        """Upload the contents that its node lacks, start the sandbox, and attach to its tunnel, if any.

        Raises ProviderUnavailable, SandboxLost, and what packing raises.
        """
        if contents:
            await self._start(contents)
        if self.spec.tunnel is not None:
            tunnel = ClientTunnel(self._node, self.spec.tunnel)
            await tunnel.open()
            self._tunnel = tunnel

    async def _start(self, contents: Mapping[str, Path]) -> None:
        for _ in range(3):  # the node may delete content between two calls
            data = await self._node.request("POST", "/start", timeout_s=START_S, idempotent=True)
            reply = StartReply.model_validate_json(data)
            if not reply.missing:
                self.spec = dataclasses.replace(self.spec, workdir=reply.workdir)
                self.enforced = reply.enforced
                return
            for digest in reply.missing:
                async with _packed(contents[digest].resolve()) as file:
                    await self._send(f"/content/{digest}", file, {})
        raise ProviderUnavailable(f"{self._node.url} does not keep uploaded contents", retryable=True)

    # --- commands

    async def _exec(self, command: Command) -> ExecResult:
        self._check_open()
        after = command.stdin if len(command.stdin) > _INPUT_IN_JSON else b""
        payload = ExecRequest(
            command=command.argv,
            timeout_s=command.timeout_s,
            cwd=command.cwd,
            env=command.env,
            stdin=b"" if after else command.stdin,
            merge_stderr=command.merge_stderr,
            stream=command.on_output is not None,
        )
        body, limit_s = payload.model_dump_json().encode() + after, command.timeout_s + MARGIN_S
        headers = {INPUT_HEADER: str(len(after))} if after else {}
        if command.on_output is not None:
            reply = await self._or_lost(self._exec_live(body, headers, limit_s, command.on_output))
        else:
            reply = await self._or_lost(self._exec_keyed(body, headers, limit_s))
        return ExecResult(**reply.model_dump(exclude={"ok"}))

    async def _exec_keyed(self, body: bytes, headers: Mapping[str, str], timeout_s: float) -> ExecReply:
        headers = {**headers, IDEMPOTENCY_HEADER: secrets.token_hex(16)}
        try:
            data = await self._node.request(
                "POST", "/exec", body=body, headers=headers, timeout_s=timeout_s, idempotent=True
            )
        except asyncio.CancelledError:
            with contextlib.suppress(ProviderUnavailable, SandboxLost):
                await self._node.request("DELETE", "/exec", headers=headers, timeout_s=_CANCEL_S)
            raise
        return ExecReply.model_validate_json(data)

    async def _exec_live(
        self, body: bytes, headers: Mapping[str, str], timeout_s: float, on_output: OnOutput
    ) -> ExecReply:
        async with self._node.stream(
            "POST", "/exec", body=body, headers=headers, timeout_s=timeout_s
        ) as response:
            async for line in _lines(response.content):
                message = EXEC_LINE.validate_json(line)
                if isinstance(message, ExecReply):
                    return message
                if isinstance(message, ErrorBody):
                    raise from_body(message)
                on_output(message.stream, message.data)
        raise Unreachable(f"{self._node.url} ended its output without a result")

    # --- files

    async def read(self, path: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, IsADirectoryError, SandboxError."""
        self._check_open()
        return await self._or_lost(
            self._node.request("GET", "/files", params={"path": path}, timeout_s=FILES_S, idempotent=True)
        )

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_open()
        params = {"path": path, "mode": f"{mode:o}"}
        await self._or_lost(
            self._node.request("PUT", "/files", body=data, params=params, timeout_s=FILES_S, idempotent=True)
        )

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or tree. Raises OSError, TooLarge, SandboxError (for special files)."""
        self._check_open()
        async with _packed(source) as file:
            await self._or_lost(self._send("/archive", file, {"path": target}))

    async def _send(self, path: str, file: IO[bytes], params: Mapping[str, str]) -> None:
        await self._node.request("PUT", path, body=file, params=params, timeout_s=FILES_S)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file (replacing `target`) or a tree (making `target`), whole or not at all."""
        self._check_open()
        with tempfile.TemporaryFile() as file:
            await self._or_lost(self._fetch(source, file))
            await asyncio.to_thread(_unpack_at, file, target)

    async def _fetch(self, source: str, file: IO[bytes]) -> None:
        left = trees.max_wire_bytes()
        async with self._node.stream(
            "GET", "/archive", params={"path": source}, timeout_s=FILES_S
        ) as response:
            async for chunk in response.content.iter_chunked(1 << 18):
                left -= len(chunk)
                if left < 0:
                    raise TooLarge(f"{source} is larger than an archive may be")
                await asyncio.to_thread(file.write, chunk)

    # --- endings

    def lose(self, error: SandboxLost) -> None:
        """End what runs; running and later calls raise `error`."""
        if not self._loss.done():
            self._loss.set_result(error)
        if self._tunnel is not None:
            self._tunnel.cancel()

    def _check_open(self) -> None:
        if self._loss.done():
            raise self._loss.result()
        if self._closed:
            raise SandboxLost("the sandbox is closed")

    async def _or_lost(self, request: Coroutine[Any, Any, Result]) -> Result:
        """Await a call; raise SandboxLost when its node cannot be reached, or `lose` is called meanwhile."""
        working = asyncio.create_task(request)
        try:
            await asyncio.wait({working, self._loss}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise self._loss.result()
            return working.result()
        except (Unreachable, SandboxLost) as error:
            if self._loss.done():
                raise self._loss.result() from None
            if isinstance(error, SandboxLost):
                raise
            raise SandboxLost(f"its node cannot be reached: {error}") from error
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def close(self) -> None:
        """Release the sandbox. If the node cannot be reached, the sandbox expires there."""
        self._closed = True
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._released:
            return
        try:
            await self._on_close()
        except Unreachable as error:
            _log.warning("sandbox %s is left to expire: %s", self.id, error)
        self._released = True


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length, which `StreamReader.readline` would limit."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        *whole, last = rest.split(b"\n")
        for line in whole:
            yield bytes(line)
        rest = bytearray(last)


@contextlib.asynccontextmanager
async def _packed(source: Path) -> AsyncIterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(trees.pack, source, file)
        file.seek(0)
        yield file


def _unpack_at(file: IO[bytes], target: Path) -> None:
    """Unpack into a temporary directory beside the target, then rename."""
    file.seek(0)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".hone-") as folder:
        content = trees.unpack(file, Path(folder))
        if content.is_dir() and (target.exists() or target.is_symlink()):
            raise FileExistsError(f"{target} exists")
        content.rename(target)
