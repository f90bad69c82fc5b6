"""A sandbox on a node: the contract, spoken over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, TypeVar

import aiohttp

from hone.sandbox import trees
from hone.sandbox.client.connection import Unreachable, connect
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
    ErrorBody,
    ExecReply,
    ExecRequest,
    StartReply,
)

MARGIN_S = 60.0  # beyond a command's own time, before the node is given up
FILES_S = 600.0  # the most that one file or tree may take
START_S = 660.0  # the most that a start may take, once its contents are there
_CANCEL_S = 5.0

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class RemoteSandbox(Sandbox):
    """Its node's reply is authoritative; a node that cannot be reached is a sandbox that is lost.

    A command carries a key, so that its reply can be asked for again when a connection breaks. With
    `on_output` it cannot: a broken connection ends the command, and SandboxLost is raised.
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
    ) -> None:
        """
        Args:
            session: its owner's; must outlive the sandbox.
            spec: with `workdir` filled in.
            on_close: gives the sandbox back, to the node or to the pool; called by the first `close`.
        """
        self.id = sandbox_id
        self.spec = spec
        self.enforced = enforced
        self._node = connect(session, f"{node_url.rstrip('/')}/v1/sandboxes/{sandbox_id}", capability)
        self._on_close = on_close
        self._closed = self._given_back = False
        self._tunnel: ClientTunnel | None = None

    async def start(self, contents: Mapping[str, Path]) -> None:
        """Start a sandbox whose spec names contents, giving its node those that are missing there.

        Raises ProviderUnavailable, and what packing raises.
        """
        for _ in range(3):  # once to learn what is missing, once more should the node drop one meanwhile
            data = await self._node.request("POST", "/start", timeout_s=START_S, idempotent=True)
            reply = StartReply.model_validate_json(data)
            if not reply.missing:
                self.spec = dataclasses.replace(self.spec, workdir=reply.workdir)
                self.enforced = reply.enforced
                return
            for digest in reply.missing:
                async with _packed(contents[digest].resolve()) as file:
                    await self._send(f"/content/{digest}", file, {})
        raise ProviderUnavailable(f"{self._node.url} does not keep what it is given", retryable=True)

    async def attach(self) -> None:
        """Join the tunnel, where its spec names one. Raises SandboxLost, ProviderUnavailable."""
        if self.spec.tunnel is not None:
            tunnel = ClientTunnel(self._node, self.spec.tunnel)
            await tunnel.open()
            self._tunnel = tunnel

    async def detach(self) -> None:
        """End the connections of the tunnel."""
        if self._tunnel is not None:
            await self._tunnel.close()

    # --- commands

    async def _exec(self, command: Command) -> ExecResult:
        self._check_open()
        asked = ExecRequest(
            command=command.argv,
            timeout_s=command.timeout_s,
            cwd=command.cwd,
            env=command.env,
            stdin=command.stdin,
            merge_stderr=command.merge_stderr,
            stream=command.on_output is not None,
        )
        body, patience = asked.model_dump_json().encode(), command.timeout_s + MARGIN_S
        if command.on_output is not None:
            reply = await self._reached(self._exec_live(body, patience, command.on_output))
        else:
            reply = await self._reached(self._exec_keyed(body, patience))
        return ExecResult(**reply.model_dump(exclude={"ok"}))

    async def _exec_keyed(self, body: bytes, timeout_s: float) -> ExecReply:
        headers = {IDEMPOTENCY_HEADER: secrets.token_hex(16)}
        try:
            data = await self._node.request(
                "POST", "/exec", body=body, headers=headers, timeout_s=timeout_s, idempotent=True
            )
        except asyncio.CancelledError:
            with contextlib.suppress(ProviderUnavailable, SandboxLost):
                await self._node.request("DELETE", "/exec", headers=headers, timeout_s=_CANCEL_S)
            raise
        return ExecReply.model_validate_json(data)

    async def _exec_live(self, body: bytes, timeout_s: float, on_output: OnOutput) -> ExecReply:
        async with self._node.stream("POST", "/exec", body=body, timeout_s=timeout_s) as response:
            async for line in _lines(response.content):
                said = EXEC_LINE.validate_json(line)
                if isinstance(said, ExecReply):
                    return said
                if isinstance(said, ErrorBody):
                    raise from_body(said)
                on_output(said.stream, said.data)
        raise Unreachable(f"{self._node.url} ended its output without a result")

    # --- files

    async def read(self, path: str) -> bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, SandboxError."""
        self._check_open()
        return await self._reached(
            self._node.request("GET", "/files", params={"path": path}, timeout_s=FILES_S, idempotent=True)
        )

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_open()
        params = {"path": path, "mode": f"{mode:o}"}
        await self._reached(
            self._node.request("PUT", "/files", body=data, params=params, timeout_s=FILES_S, idempotent=True)
        )

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or tree. Raises OSError, TooLarge, and SandboxError for what does not travel."""
        self._check_open()
        async with _packed(source) as file:
            await self._reached(self._send("/archive", file, {"path": target}))

    async def _send(self, path: str, file: IO[bytes], params: Mapping[str, str]) -> None:
        await self._node.request("PUT", path, body=file, params=params, timeout_s=FILES_S)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file (replacing `target`) or a tree (making `target`), whole or not at all."""
        self._check_open()
        with tempfile.TemporaryFile() as file:
            await self._reached(self._fetch(source, file))
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

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxLost("it was closed")

    async def _reached(self, asking: Awaitable[Result]) -> Result:
        """What was asked for; SandboxLost when the node cannot be reached."""
        try:
            return await asking
        except Unreachable as error:
            raise SandboxLost(f"its node cannot be reached: {error}") from error

    async def close(self) -> None:
        """Give it back. Where the node cannot be reached, its time to live ends it."""
        self._closed = True
        await self.detach()
        if self._given_back:
            return
        try:
            await self._on_close()
        except Unreachable as error:
            _log.warning("sandbox %s is left to its time to live: %s", self.id, error)
        self._given_back = True


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; the reader's own `readline` bounds them."""
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
    """Unpack beside the target, then move into place."""
    file.seek(0)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".hone-") as folder:
        content = trees.unpack(file, Path(folder))
        if content.is_dir() and (target.exists() or target.is_symlink()):
            raise FileExistsError(f"{target} exists")
        content.rename(target)
