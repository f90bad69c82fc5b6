"""Save a checkpoint, then be killed with -9 while a thread saves the next, once at each stage.

Run as `python -m tests.train.killed_save DIRECTORY`; prints how each child ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hone.train import checkpoint, sharded_state
from hone.train.checkpoint import TrainState
from hone.train.checkpoint_writer import CheckpointWriter
from hone.train.settings import CheckpointSettings
from tests.train.examples import model_of, tiny_model, tokenizer, trainer_of


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_file(_: object, storage_writer: Any, **__: object) -> None:
    Path(storage_writer.path).mkdir()
    (Path(storage_writer.path) / "__0_0.distcp").write_bytes(b"half of an optimizer")
    die()


def die_if_it_exists(path: Path, **_: object) -> None:
    if path.exists():
        die()


WRITE_TEXT = Path.write_text
RENAME = Path.rename


def write_half_of_the_marker(path: Path, text: str) -> int:
    if path.name != checkpoint.MARKER:
        return WRITE_TEXT(path, text)
    WRITE_TEXT(path, text[: len(text) // 2])
    die()
    return 0


def die_at_rename(of: str, after: bool = False) -> Callable[[], None]:
    """Die at the rename to `of`, before or after it."""

    def rename(path: Path, target: Path) -> Path:
        if Path(target).name != of:
            return RENAME(path, target)
        if after:
            RENAME(path, target)
        die()
        return target

    return lambda: setattr(Path, "rename", rename)


STAGES: dict[str, Callable[[], None]] = {
    "shards": lambda: setattr(sharded_state, "dcp_save", half_a_file),
    "metadata": die_at_rename(".metadata"),
    "marker": lambda: setattr(Path, "write_text", write_half_of_the_marker),
    "flush": lambda: setattr(checkpoint, "sync_file", die),
    "rename": die_at_rename("step-000001"),
    "renamed": die_at_rename("step-000001", after=True),
    "deletion": lambda: setattr(checkpoint.shutil, "rmtree", die_if_it_exists),
}


def save(directory: Path, step: int) -> None:
    """Save in a thread while the weights change."""
    trainer = trainer_of(tiny_model(step))
    settings = CheckpointSettings(keep=1)
    with CheckpointWriter(directory, trainer, tokenizer(), settings) as writer:
        writer.begin(TrainState(step=step))
        for parameter in model_of(trainer).parameters():
            parameter.data.zero_()


def child(directory: Path, stage: str) -> None:
    torch.set_num_threads(1)
    save(directory, 0)
    STAGES[stage]()
    save(directory, 1)


def main() -> None:
    for stage in STAGES:
        pid = os.fork()
        if pid == 0:
            child(Path(sys.argv[1]) / stage, stage)
            os._exit(0)
        print(stage, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
