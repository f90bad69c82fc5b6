"""The client's end of a sandbox's tunnel: connects each connection from inside to a local unix socket."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp

from hone.sandbox.client.api import Unreachable
from hone.sandbox.contract import SandboxLost
from hone.sandbox.network import connect_unix
from hone.sandbox.remote.tunnel import MESSAGE_MAX, OPEN, PROTOCOL, relay
from hone.utils.http_client import HttpClient
from hone.utils.retry import ENDLESS, backoff_delays, retry

CONNECT_S = 20.0
_CLOSE_S = 1.0  # for the node to agree to the end of a WebSocket
_REFUSALS = range(400, 500)  # HTTP statuses after which attaching again is pointless
_log = logging.getLogger(__name__)

_Socket = aiohttp.ClientWebSocketResponse


class ClientTunnel:
    """Attached until it is closed; after a network failure it attaches again."""

    def __init__(self, node: HttpClient, service: Path) -> None:
        self._node, self._service = node, service
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Attach, and serve in a task. Raises SandboxLost, Unreachable."""
        self._task = asyncio.create_task(self._serve(await self._attach()))

    def cancel(self) -> None:
        """Start to end every connection."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                _log.error("the tunnel to %s failed", self._service, exc_info=error)

    async def _attach(self) -> _Socket:
        """Return an idle WebSocket of the node."""
        url = f"{self._node.url}/tunnel"
        if self._node.session.closed:
            raise SandboxLost("its client is closed")
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._node.session.ws_connect(
                    url,
                    headers=self._node.headers,
                    protocols=(PROTOCOL,),
                    max_msg_size=MESSAGE_MAX + 1,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),  # pyright: ignore[reportCallIssue]
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _REFUSALS:
                raise SandboxLost("its node has no such sandbox, or it has no tunnel") from error
            raise Unreachable(f"{url} refused with HTTP {error.status}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url} is unreachable: {error}") from error

    async def _serve(self, idle: _Socket) -> None:
        """Run until cancelled, or the sandbox is gone."""
        async with asyncio.TaskGroup() as group:
            while True:
                message = await idle.receive()
                if message.type is aiohttp.WSMsgType.TEXT and message.data == OPEN:
                    group.create_task(self._connect(idle))
                else:
                    await idle.close()
                try:
                    idle = await retry(
                        self._attach,
                        attempts=ENDLESS,
                        delays=backoff_delays(0.1, factor=4.0, max_s=5.0),
                        transient=lambda error: isinstance(error, Unreachable),
                    )
                except SandboxLost:
                    return

    async def _connect(self, socket: _Socket) -> None:
        """Carry one connection between the node and the service."""

        async def receive() -> bytes:
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise ConnectionResetError("the node closed the connection")
            return message.data

        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await connect_unix(self._service)
            await relay(reader, writer, socket.send_bytes, receive)
        except OSError as error:
            _log.warning("the service %s is unreachable: %s", self._service, error)
        finally:
            await socket.close()
