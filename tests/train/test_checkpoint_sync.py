"""A saved checkpoint is flushed to the disk: no model is needed to see that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from hone.train import checkpoint
from hone.train.checkpoint import TrainState
from hone.train.trainer import Trainer


class Writes:
    """A model, a tokenizer and a trainer that write one file each."""

    def __init__(self) -> None:
        self.model = self

    def save_pretrained(self, directory: str) -> None:
        (Path(directory) / f"file{len(list(Path(directory).iterdir()))}").write_text("content")

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
    assert len(list(path.iterdir())) == 5
    assert {file.stat().st_ino for file in (*path.iterdir(), path, tmp_path)} <= flushed
