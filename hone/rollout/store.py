"""Rollouts on disk: one directory each, enough to read, grade or train on them again.

A rollout of a training is named `<task>__g<group>__i<index>__<time_ns>`, a sample of an evaluation
`<task>__<time_ns>`; `hone.rollout.trajectory_files` lists its files. A directory is written under a
temporary name and renamed, so it is complete or absent. Files are not fsynced: kill -9 loses nothing, and
`load` detects a rollout that a power cut has damaged.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hone.outcomes import Outcome
from hone.rollout.errors import StoreError
from hone.rollout.trajectory_files import decode, decode_ending, encode
from hone.types import Trajectory
from hone.utils.errors import writing

Parsed = TypeVar("Parsed")
_PARTIAL = ".partial-"
_NAME = re.compile(r".+__\d+")


class Store:
    """The `rollouts/` directory of a run. Methods block; call them in a thread from async code."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mutex = threading.Lock()
        self._last_ns = 0

    def save(self, trajectory: Trajectory, *, group: int, index: int) -> str:
        """Write a rollout of a training and return its directory's name.

        Raises StoreError when the disk is full or cannot be written; rollouts stored earlier stay complete.
        """
        meta = {"group_index": group, "index": index}
        return self._write(f"{_stem(trajectory)}__g{group}__i{index}", trajectory, meta)

    def save_sample(self, trajectory: Trajectory, *, index: int, meta: Mapping[str, Any]) -> str:
        """Write a sample of an evaluation, with `meta` in its meta.json, and return its directory's name."""
        return self._write(_stem(trajectory), trajectory, {**meta, "group_index": 0, "index": index})

    def _write(self, stem: str, trajectory: Trajectory, meta: Mapping[str, Any]) -> str:
        name = f"{stem}__{self._stamp()}"
        partial = self.root / f"{_PARTIAL}{name}"
        with writing(self.root, StoreError):
            try:
                partial.mkdir(parents=True)
                for file, content in encode(trajectory, meta).items():
                    (partial / file).write_bytes(content)
                partial.rename(self.root / name)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return name

    def _stamp(self) -> int:
        """Return a unique Unix time in ns: two samples of one task may end at the same moment."""
        with self._mutex:
            self._last_ns = max(time.time_ns(), self._last_ns + 1)
            return self._last_ns

    def load(self, name: str) -> Trajectory:
        """Return the trajectory that was saved under `name`, bit for bit. Raises StoreError."""
        return load(self.root / name)

    def names(self) -> list[str]:
        """Return the names of all stored rollouts, in alphabetical order."""
        found = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(
            path.name for path in found if _NAME.fullmatch(path.name) and not path.name.startswith(_PARTIAL)
        )

    def endings(self) -> list[tuple[Outcome, float | None]]:
        """Return outcome and reward of every stored rollout, in the order of `names`. Raises StoreError."""
        return [_read(self.root / name, decode_ending) for name in self.names()]

    def sweep(self, known: Iterable[str]) -> int:
        """Remove half-written rollouts and rollouts that are not in `known`; return how many."""
        keep = set(known)
        left = [
            path
            for path in (self.root.iterdir() if self.root.is_dir() else ())
            if path.name.startswith(_PARTIAL) or (_NAME.fullmatch(path.name) and path.name not in keep)
        ]
        for path in left:
            shutil.rmtree(path)
        return len(left)


def load(directory: Path) -> Trajectory:
    """Return the rollout in `directory`. Raises StoreError when it is missing or damaged."""
    return _read(directory, decode)


def _read(directory: Path, parse: Callable[[Callable[[str], bytes]], Parsed]) -> Parsed:
    try:
        return parse(lambda name: (directory / name).read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{directory} is not a complete rollout: {type(error).__name__}: {error}") from error


def _stem(trajectory: Trajectory) -> str:
    return re.sub(r"[^\w.-]", "_", trajectory.task_id)[:150]
