"""One sandbox's container, from its creation to its removal, and its preparation for the first command."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import tarfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, SandboxError, SandboxLost
from hone.sandbox.docker.engine import Engine
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire

_IDS = re.compile(rb"^Uid:\s+(\d+).*^Gid:\s+(\d+)", re.MULTILINE | re.DOTALL)


class Container:
    """Creation starts in the constructor; `remove` works at any stage."""

    def __init__(
        self, engine: Engine, name: str, config: Mapping[str, Any], resources: AsyncExitStack
    ) -> None:
        self.name = name
        self._engine = engine
        self._resources = resources  # of the host, closed after the container is removed
        self._creating = asyncio.create_task(engine.create(name, config))
        self._removing: asyncio.Task[None] | None = None

    async def boot(self) -> Channel:
        """Start it and return its channel once process 1 is ready. Raises ProviderUnavailable."""
        await asyncio.shield(self._creating)  # a cancelled request may still create a container
        channel = Channel()
        stream = await self._engine.attach(self.name, channel)
        try:
            await self._engine.start(self.name)
            await channel.ready
        except SandboxLost as lost:
            errors = stream.errors.decode("utf-8", "replace").strip()
            raise ProviderUnavailable(
                f"a sandbox ended before it was ready: {errors or lost}", retryable=not errors
            ) from None
        except BaseException:
            stream.abort()
            raise
        return channel

    async def remove(self) -> None:
        """Kill and remove it. Safe to call again, also concurrently; continues when a caller is cancelled."""
        if self._removing is None or (self._removing.done() and self._removing.exception()):
            self._removing = asyncio.create_task(self._remove())
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        await asyncio.wait([self._creating])
        self._creating.exception()  # mark it as retrieved: `boot` has raised it
        await self._engine.remove(self.name)
        await self._resources.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user of commands."""

    uid: int
    gid: int
    home: str


async def identify(channel: Channel) -> User:
    """Return the user that the image configures, which is that of process 1."""
    status = await _read(channel, b"/proc/self/status")
    found = _IDS.search(status)
    if found is None:
        raise SandboxError("process 1 of the container has no user in /proc/self/status")
    uid, gid = int(found[1]), int(found[2])
    try:
        passwd = await _read(channel, b"/etc/passwd")
    except OSError:  # an image without users
        passwd = b""
    entries = [line.split(":") for line in passwd.decode("utf-8", "replace").splitlines()]
    homes = [entry[5] for entry in entries if len(entry) > 5 and entry[2] == str(uid)]
    return User(uid=uid, gid=gid, home=homes[0] if homes and homes[0].startswith("/") else "/")


async def _read(channel: Channel, path: bytes) -> bytes:
    """Return the first CHUNK bytes of a file."""
    body = await channel.ask(wire.READ_KIND, wire.READ.pack(0, wire.CHUNK), path)
    return body[wire.DATA.size :]


async def make_workdir(engine: Engine, container: str, channel: Channel, path: str, user: User) -> None:
    """Make the workdir; where the user may not, the engine makes it for the user."""
    if user.uid == 0:
        with contextlib.suppress(PermissionError):  # podman's root directory is not writable
            await channel.ask(wire.MKDIR_KIND, os.fsencode(path))
            return
    await engine.put(container, "/", _workdir_archive(path, user))


def _workdir_archive(path: str, user: User) -> bytes:
    """Return a tar archive of the root directory, owned by root, and the workdir, owned by the user."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, uid, gid in (("./", 0, 0), (path.lstrip("/"), user.uid, user.gid)):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, uid, gid
            tar.addfile(info)
    return buffer.getvalue()
