"""A saved checkpoint is complete, verified and flushed to the disk: no model is needed to see that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from hone.train import checkpoint
from hone.train.checkpoint import TrainState
from hone.train.errors import CheckpointError
from hone.train.trainer import Trainer


class Writes:
    """A trainer, its learner and a tokenizer that write one file each."""

    def __init__(self) -> None:
        self.learner = self

    def save_pretrained(self, directory: str) -> None:
        (Path(directory) / "tokenizer").write_text("content")

    def export(self, folder: Path) -> None:
        (folder / "weights").write_text("content")

    def save(self, folder: Path) -> Callable[[], None]:
        folder.mkdir()
        return lambda: cast("None", (folder / "shard").write_text("content"))

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_every_file_of_a_checkpoint_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: set[int] = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    writes = Writes()
    path = checkpoint.save(
        tmp_path, TrainState(step=0), trainer=cast("Trainer", writes), tokenizer=writes, keep=1
    )
    assert {file.name for file in path.rglob("*")} == {
        *("weights", "tokenizer", "state", "shard", "progress.json", "COMPLETE")
    }
    assert {file.stat().st_ino for file in (*path.rglob("*"), path, tmp_path)} <= flushed


def save(folder: Path, step: int = 0, keep: int = 9) -> Path:
    writes = Writes()
    state = TrainState(step=step, rollouts={"r": "trained"})
    return checkpoint.save(folder, state, trainer=cast("Trainer", writes), tokenizer=writes, keep=keep)


def test_state_of_the_newest_checkpoint_is_read_back(tmp_path: Path) -> None:
    save(tmp_path, 3)
    path = save(tmp_path, 12)
    assert path.name == "step-000012"
    assert checkpoint.latest(tmp_path) == path
    assert checkpoint.read_state(path) == TrainState(step=12, rollouts={"r": "trained"})


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    progress = save(tmp_path) / "progress.json"
    progress.write_text(progress.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(CheckpointError, match="this version of Hone reads format 2"):
        checkpoint.read_state(progress.parent)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "lacks the file state/shard"),
        (lambda file: file.write_text("more content"), "has 12 bytes instead of 7"),
        (lambda file: file.write_text("CONTENT"), "has been changed"),
    ],
)
def test_damaged_file_of_a_checkpoint_is_named(
    damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    damage(save(tmp_path) / "state" / "shard")
    with pytest.raises(CheckpointError, match=said):
        checkpoint.latest(tmp_path)
