"""Client of the spawn server: starts its process, sends messages and receives events."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, TooLarge
from hone.sandbox.namespaces.plan import PACKET_MAX, Plan
from hone.utils.concurrency import run_in_thread

ANSWER_S = 20.0  # limit for the server to start, to exit, and to remove a sandbox
_FULL_S = 0.002  # between two attempts to send to a busy server
_PACKAGE_ROOT = Path(__file__).parents[3]
# Without `site`, because the server needs only the standard library and this package.
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hone.sandbox.namespaces.spawner import main; main(sys.argv[3:])"
)


class SpawnServer:
    """One spawn server. After `open`, `roots` are the cgroups that it may use (see `cgroups.find_roots`)."""

    def __init__(self, owner: str) -> None:
        self.roots: dict[str, str] = {}
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._exited: dict[str, asyncio.Future[str]] = {}  # sandbox -> its error

    async def open(self) -> None:
        """Start the server. Raises ProviderUnavailable. After a cancellation, too, `close` ends it."""
        await run_in_thread(self._start)
        assert self._control is not None
        asyncio.get_running_loop().add_reader(self._control, self._receive)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        label = f"hone-spawner:{self._owner}"
        command = [sys.executable, "-I", "-S", "-c", _CODE, str(_PACKAGE_ROOT), label, self._owner]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
            )
        ours.settimeout(ANSWER_S)
        try:
            self.roots = json.loads(ours.recv(1 << 16))["roots"]
        except (ValueError, TimeoutError):
            ours.close()
            raise ProviderUnavailable(
                "the spawn server of the sandboxes did not start", retryable=True
            ) from None
        ours.setblocking(False)
        self._control = ours

    async def close(self) -> None:
        """Close the control socket, upon which the server kills its sandboxes and exits; else kill it.

        Cancellation waits for the exit.
        """
        self._disconnect("the provider was closed")
        if self._process is not None:
            await run_in_thread(_wait, self._process)

    def _disconnect(self, why: str) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        for future in self._exited.values():
            if not future.done():
                future.set_result(why)

    def _receive(self) -> None:
        """Handle an event of the server, or its end."""
        assert self._control is not None
        try:
            data = self._control.recv(PACKET_MAX)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._disconnect("the spawn server died")
            return
        event: dict[str, str] = json.loads(data)
        future = self._exited.get(event["id"])
        if future is not None and not future.done():
            future.set_result(event["error"])

    async def _send(self, message: dict[str, Any], *fds: int) -> None:
        """Send one packet; wait while the server's queue is full. Raises TooLarge above PACKET_MAX."""
        data = json.dumps(message).encode()
        if len(data) > PACKET_MAX:
            raise TooLarge(
                f"the plan of this sandbox has {len(data)} bytes, more than {PACKET_MAX}: "
                "give it fewer mounts, shorter paths or an image of fewer layers"
            )
        while (control := self._control) is not None:
            try:
                socket.send_fds(control, [data], list(fds))
                return
            except BlockingIOError:
                await asyncio.sleep(_FULL_S)
        raise ProviderUnavailable(
            "the spawn server of the sandboxes died; open the provider again", retryable=False
        )

    async def start(self, plan: Plan, channel: int, upper_to: int) -> None:
        """Start a sandbox with its ends of the channel and of the socket for its upper layers."""
        self._exited[plan.id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"op": "start", "plan": plan.to_json()}, channel, upper_to)
        except BaseException:
            del self._exited[plan.id]
            raise

    async def end(self, sandbox: str) -> str:
        """Wait until nothing of a sandbox is left; return its error, or ""."""
        exited = self._exited.get(sandbox)
        if exited is None:
            return ""
        if not exited.done() and self._control is not None:
            await self._send({"op": "close", "id": sandbox})
        async with asyncio.timeout(ANSWER_S):
            why = await asyncio.shield(exited)
        self._exited.pop(sandbox, None)
        return why


def _wait(server: subprocess.Popen[bytes]) -> None:
    try:
        server.wait(ANSWER_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
