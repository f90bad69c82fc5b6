"""Small file operations that the store is made of."""

from __future__ import annotations

import os
from pathlib import Path


def size_of(directory: Path) -> int:
    """Bytes on disk of a tree that others may be changing; a file with several links counts once."""
    total, seen = 0, set[tuple[int, int]]()
    waiting = [str(directory)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if (info.st_dev, info.st_ino) in seen:
                            continue
                        seen.add((info.st_dev, info.st_ino))
                    total += info.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue
    return total
