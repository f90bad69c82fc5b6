"""Bases of unpacked images, with the user that their configuration names."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.sandbox.contract import DEFAULT_WORKDIR, ImageUnavailable
from hone.sandbox.namespaces import syscalls
from hone.sandbox.namespaces.plan import Base, Overlay

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
    """Return the base of an image: its layers, lowest first, and ENV, WORKDIR and USER of its configuration.

    All files belong to that user, the only one inside, without capabilities.

    Raises:
        ImageUnavailable: the image does not define the user.
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
    """Return the lines of the topmost /etc/NAME, split at colons."""
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
    """Return uid, gid and home of USER: a name or number, optionally with `:group` (OCI specification)."""
    name, _, group_name = user.partition(":")
    users = [row for row in passwd if len(row) >= 6 and row[2].isdigit() and row[3].isdigit()]
    account = _find_row(image, "user", name, users)
    uid = int(account[2]) if account else int(name)
    gid = int(account[3]) if account else 0
    if group_name:
        row = _find_row(image, "group", group_name, [row for row in group if row[2].isdigit()])
        gid = int(row[2]) if row else int(group_name)
    return uid, gid, (account[5] if account and account[5] else "/")


def _find_row(image: str, kind: str, name: str, rows: list[list[str]]) -> list[str] | None:
    """Return the row of a user or group, by name or number; None for a number without a row."""
    row = next((row for row in rows if name in (row[0], row[2])), None)
    if row is None and not name.isdigit():
        raise ImageUnavailable(
            f"{image} runs as {kind} {name!r}, which its accounts in /etc do not define",
            problem="damaged_image",
        )
    return row
