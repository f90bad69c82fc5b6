"""Unpack archives with a known digest; digest and mark file trees."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from hone.agents.scaffold import ScaffoldError

ARCHIVE_MAX = 2 << 30  # bytes
_READ_TIMEOUT_S = 60.0


def unpack(source: str, sha256: str, target: Path) -> None:
    """Unpack a tar archive, from an https:// address or a path, into `target` after checking its digest.

    Raises:
        ScaffoldError: it cannot be read, has another digest, or holds a path or link that leaves `target`.
    """
    with tempfile.TemporaryFile() as file:
        digest = hashlib.sha256()
        size = 0
        try:
            for piece in _pieces(source):
                size += len(piece)
                if size > ARCHIVE_MAX:
                    raise ScaffoldError(f"{source} has more than {ARCHIVE_MAX >> 30} GiB")
                digest.update(piece)
                file.write(piece)
        except (OSError, httpx.HTTPError) as error:
            raise ScaffoldError(f"cannot read {source}: {error}") from error
        if digest.hexdigest() != sha256:
            raise ScaffoldError(f"{source} has the digest {digest.hexdigest()}, not {sha256}")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as archive:
                archive.extractall(target, filter="data")
        except tarfile.TarError as error:
            raise ScaffoldError(f"{source} cannot be unpacked: {error}") from error


def _pieces(source: str) -> Iterator[bytes]:
    if not source.startswith("https://"):
        with Path(source).open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
        return
    with httpx.stream("GET", source, follow_redirects=True, timeout=_READ_TIMEOUT_S) as answer:
        answer.raise_for_status()
        yield from answer.iter_bytes(1 << 20)


def mark_executables(tree: Path) -> None:
    """Make every ELF file executable: archives of some registries lose the mode."""
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    path.chmod(0o755)


def digest_tree(tree: Path, leave_out: str) -> str:
    """Return the SHA-256 of all names, kinds, modes and contents below `tree` but the file `leave_out`."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted([*files, *(one for one in folders if (Path(folder) / one).is_symlink())]):
            path = Path(folder) / name
            relative = path.relative_to(tree).as_posix()
            if relative == leave_out:
                continue
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                content = path.readlink().as_posix().encode()
            else:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            kind = "link" if stat.S_ISLNK(mode) else ("program" if mode & 0o100 else "file")
            digest.update(f"{relative}\0{kind}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
