"""List the files that are left in a store's directory."""

from __future__ import annotations

from pathlib import Path


def left(directory: Path) -> list[str]:
    """Everything that only an image, a running pull or an accident leaves behind."""
    places = ("blobs/sha256", "layers", "records", "names", "staging", "locks")
    return [f"{place}/{path.name}" for place in places for path in (directory / place).iterdir()
            if path.name != "store"]  # fmt: skip
