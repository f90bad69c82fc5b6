"""Build contexts on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hone.sandbox.contract import WriteContext


def write_context(
    folder: Path, dockerfile: str | bytes, files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Write a Dockerfile and the files beside it into a new directory; return it."""
    for name, content in {"Dockerfile": dockerfile, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def copied(context: Path) -> WriteContext:
    """Return what gives a build the files of a directory."""

    def write(made: Path) -> None:
        shutil.copytree(context, made)

    return write
