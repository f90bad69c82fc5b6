"""Prepare a started container for its first command: find its user and make the workdir.

No command has run yet, so the container is still trusted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
from dataclasses import dataclass

from hone.sandbox.contract import SandboxError
from hone.sandbox.docker.engine import Engine
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire

_IDS = re.compile(rb"^Uid:\s+(\d+).*^Gid:\s+(\d+)", re.MULTILINE | re.DOTALL)


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
