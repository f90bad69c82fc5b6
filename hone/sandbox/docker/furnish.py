"""A started container made ready for its first command: who its user is, and the workdir with its content.

Nothing of the sandbox's has run yet, so nothing inside works against this.
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
    """Whom commands run as."""

    uid: int
    gid: int
    home: str


async def identify(channel: Channel) -> User:
    """The user that the image names, as the supervisor finds itself."""
    status = await _read(channel, b"/proc/self/status")
    found = _IDS.search(status)
    if found is None:
        raise SandboxError("the supervisor cannot tell who it is")
    uid, gid = int(found[1]), int(found[2])
    try:
        passwd = await _read(channel, b"/etc/passwd")
    except OSError:  # an image without users
        passwd = b""
    entries = [line.split(":") for line in passwd.decode("utf-8", "replace").splitlines()]
    homes = [entry[5] for entry in entries if len(entry) > 5 and entry[2] == str(uid)]
    return User(uid=uid, gid=gid, home=homes[0] if homes and homes[0].startswith("/") else "/")


async def _read(channel: Channel, path: bytes) -> bytes:
    """The first CHUNK bytes of a file."""
    body = await channel.ask(wire.READ_KIND, wire.READ.pack(0, wire.CHUNK), path)
    return body[wire.DATA.size :]


async def make_workdir(engine: Engine, container: str, channel: Channel, path: str, user: User) -> None:
    """Make the workdir; what the user may not make, the engine makes and hands to the user."""
    if user.uid == 0:
        with contextlib.suppress(PermissionError):  # podman's root directory is nobody's to write to
            await channel.ask(wire.MKDIR_KIND, os.fsencode(path))
            return
    await engine.put(container, "/", _workdir_archive(path, user))


def _workdir_archive(path: str, user: User) -> bytes:
    """A tar of the root directory, which root may write to, and the workdir, which is the user's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, uid, gid in (("./", 0, 0), (path.lstrip("/"), user.uid, user.gid)):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, uid, gid
            tar.addfile(info)
    return buffer.getvalue()
