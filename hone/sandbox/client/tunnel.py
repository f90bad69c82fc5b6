"""The client's end of a sandbox's tunnel: what connects inside is joined to a unix socket of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from hone.sandbox.client.connection import Unreachable
from hone.sandbox.contract import SandboxLost
from hone.sandbox.remote.tunnel import FRAME_MAX, Joined, Multiplexer, ProtocolBroken
from hone.utils.http_client import HttpClient

CONNECT_S = 20.0
HEARTBEAT_S = 60.0
_PAUSES_S = (0.1, 0.5, 2.0, 5.0)  # between tries to attach again; the last one repeats
_GONE = (403, 404)  # answers after which there is nothing to attach to any more
_log = logging.getLogger(__name__)

_Line = aiohttp.ClientWebSocketResponse


class ClientTunnel:
    """Attached until it is closed: when its line breaks, connections end, and it attaches again."""

    def __init__(self, node: HttpClient, service: Path) -> None:
        self._node, self._url, self._service = node, f"{node.url}/tunnel", service
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Attach, and serve in a task. Raises SandboxLost, Unreachable."""
        line = await self._attach()
        self._task = asyncio.create_task(self._serve(line))

    def cancel(self) -> None:
        """End every connection, soon."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _attach(self) -> _Line:
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._node.session.ws_connect(
                    self._url, headers=self._node.headers, heartbeat=HEARTBEAT_S, max_msg_size=FRAME_MAX + 1
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _GONE:
                raise SandboxLost("its node has no such sandbox, or it has no tunnel") from error
            raise Unreachable(f"{self._url} refused with status {error.status}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._url} cannot be reached: {error}") from error

    async def _serve(self, line: _Line) -> None:
        """Runs until cancelled, or the sandbox is gone."""
        while True:
            try:
                await self._carry(line)
                line = await self._attach_again()
            except SandboxLost:
                return
            except ProtocolBroken as broken:
                _log.warning("the tunnel %s stays closed: %s", self._url, broken)
                return

    async def _attach_again(self) -> _Line:
        """Raises SandboxLost."""
        for pause in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            try:
                return await self._attach()
            except Unreachable:
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _carry(self, line: _Line) -> None:
        """Until the line breaks. Raises ProtocolBroken."""
        multiplexer, broken = Multiplexer(line.send_bytes), None
        async with _closing(line), asyncio.TaskGroup() as group:
            try:
                async for message in line:
                    if message.type is aiohttp.WSMsgType.ERROR:
                        break
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        raise ProtocolBroken("a message that is not binary")
                    if (joined := multiplexer.take(message.data)) is not None:
                        group.create_task(self._join(multiplexer, joined))
            except ProtocolBroken as error:
                broken = error
            finally:
                multiplexer.end()
        if broken is not None:
            raise broken

    async def _join(self, multiplexer: Multiplexer, joined: Joined) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(self._service)
        except (OSError, TimeoutError) as error:
            _log.warning("the service %s cannot be reached: %s", self._service, error)
            await multiplexer.reset(joined)
            return
        await multiplexer.carry(joined, reader, writer)


@asynccontextmanager
async def _closing(line: _Line) -> AsyncGenerator[None]:
    """Close a line at the end, without waiting for the other end to agree."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await line.close()
