"""Build contexts on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_context(
    folder: Path, dockerfile: str | bytes, files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Write a Dockerfile and the files beside it into a new directory; return it."""
    for name, content in {"Dockerfile": dockerfile, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
