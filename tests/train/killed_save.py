"""Save a checkpoint, then be killed with -9 in the middle of saving the next, once at each stage.

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

from hone.train import checkpoint
from hone.train.checkpoint import TrainState
from tests.train.examples import tiny_model, tokenizer, trainer_of


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_file(state: Any, path: Path) -> None:
    path.write_bytes(b"half of an optimizer")
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


def rename_then_die(path: Path, target: Path) -> Path:
    RENAME(path, target)
    die()
    return target


STAGES: dict[str, Callable[[], None]] = {
    "optimizer": lambda: setattr(torch, "save", half_a_file),
    "marker": lambda: setattr(Path, "write_text", write_half_of_the_marker),
    "flush": lambda: setattr(checkpoint, "sync_file", die),
    "rename": lambda: setattr(Path, "rename", die),
    "renamed": lambda: setattr(Path, "rename", rename_then_die),
    "deletion": lambda: setattr(checkpoint.shutil, "rmtree", die_if_it_exists),
}


def save(directory: Path, step: int) -> None:
    model = tiny_model(step)
    checkpoint.save(
        directory, TrainState(step=step), trainer=trainer_of(model), tokenizer=tokenizer(), keep=1
    )


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
