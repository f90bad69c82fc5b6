"""Images other than `host`: unpacked layers, and the user whom their configuration names."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.sandbox.contract import DEFAULT_WORKDIR, ImageUnavailable
from hone.sandbox.namespaces import syscalls
from hone.sandbox.namespaces.base import Base
from hone.sandbox.namespaces.plan import Overlay

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORIES = (
    "etc", "proc", "dev", "sys", "tmp", "run", "run/hone", "opt", "opt/hone", "opt/hone/init",
)  # fmt: skip
_FILES = {
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
}
_ACCOUNTS_MAX = 1 << 20  # bytes of /etc/passwd or /etc/group that are read


def base(name: str, layers: Sequence[Path], env: Mapping[str, str], workdir: str, user: str) -> Base:
    """An image of these layers, lowest first, with ENV, WORKDIR and USER of its configuration.

    All its files belong to that user, who has no capabilities and no other user beside it.
    Raises ImageUnavailable when the image does not know the user.
    """
    passwd, group = _accounts(layers, "passwd"), _accounts(layers, "group")
    uid, gid, home = _find_user(name, user or "0", passwd, group)
    return Base(
        name=name,
        uid=uid,
        gid=gid,
        env={"PATH": _PATH, "HOME": home, **env},
        workdir=workdir or DEFAULT_WORKDIR,
        directories=list(_DIRECTORIES),
        links={},
        files=dict(_FILES),
        overlays=[
            Overlay(target="/", name="root", lowers=[str(path) for path in reversed(layers)], translated=True)
        ],
        shown=[],
    )


def _accounts(layers: Sequence[Path], name: str) -> list[list[str]]:
    """Lines of the topmost /etc/NAME, split at colons."""
    for layer in reversed(layers):
        root = os.open(layer, os.O_PATH | os.O_DIRECTORY)
        try:
            fd = syscalls.open_in_root(root, f"etc/{name}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO):  # absent, or removed by a whiteout
                continue
            raise
        finally:
            os.close(root)
        with os.fdopen(fd, "rb") as file:
            text = file.read(_ACCOUNTS_MAX).decode("utf-8", "replace")
        return [line.split(":") for line in text.splitlines() if line.count(":") >= 2]
    return []


def _find_user(
    image: str, user: str, passwd: list[list[str]], group: list[list[str]]
) -> tuple[int, int, str]:
    """uid, gid and home of a USER: a name or number, with or without `:group` (OCI image specification)."""
    name, _, group_name = user.partition(":")
    users = [row for row in passwd if len(row) >= 6 and row[2].isdigit() and row[3].isdigit()]
    account = next((row for row in users if name in (row[0], row[2])), None)
    if account is None and not name.isdigit():
        raise ImageUnavailable(
            f"{image} runs as user {name!r}, whom its /etc/passwd does not name", problem="damaged_image"
        )
    uid = int(account[2]) if account else int(name)
    gid = int(account[3]) if account else 0
    if group_name:
        groups = [row for row in group if row[2].isdigit()]
        row = next((row for row in groups if group_name in (row[0], row[2])), None)
        if row is None and not group_name.isdigit():
            raise ImageUnavailable(
                f"{image} runs as group {group_name!r}, whom its /etc/group does not name",
                problem="damaged_image",
            )
        gid = int(row[2]) if row else int(group_name)
    return uid, gid, (account[5] if account and account[5] else "/")
