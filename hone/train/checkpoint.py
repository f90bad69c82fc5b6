"""Checkpoints: written to a temporary folder, fsynced, then renamed; each is complete or absent.

checkpoints/step-000012/    loadable by transformers' from_pretrained (weights, configuration, tokenizer)
    adapter/                the adapters alone, for peft, if adapters are trained
    state/                  the learner's: master weights, optimiser and random states (`sharded_state`)
    progress.json           step, counters of the trainer, and the dispositions of the step's rollouts
    COMPLETE                size and SHA-256 of every other file; written last
checkpoints/.writing-...    a write in progress; the next write removes the rest of a killed one
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors import SafetensorError

from hone.train.errors import CheckpointError
from hone.train.sharded_state import reason
from hone.train.trainer import Trainer
from hone.utils.files import remove_directory, sync_directory, sync_file

log = logging.getLogger(__name__)

MARKER = "COMPLETE"
PREFIX = "step-"
FORMAT = 2

T = TypeVar("T")


class Tokenizer(Protocol):
    def save_pretrained(self, save_directory: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """State of a run after `step`; the position in the data follows from the step."""

    step: int
    rollouts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # JSON: the disposals for the ledger


def save(directory: Path, state: TrainState, *, trainer: Trainer, tokenizer: Tokenizer, keep: int) -> Path:
    """Write the checkpoint of `state.step` and return its folder; `begin_save` without a thread."""
    return begin_save(directory, state, trainer=trainer, tokenizer=tokenizer, keep=keep)()


def begin_save(
    directory: Path,
    state: TrainState,
    *,
    trainer: Trainer,
    tokenizer: Tokenizer,
    keep: int,
    protect: Collection[int] = (),
) -> Callable[[], Path]:
    """Write the weights for transformers, copy the learner's state, and return a function that completes.

    Training may go on between this call and the returned function, which waits for the learner's files,
    verifies and renames the folder, and deletes all checkpoints but the newest `keep` and those of the steps
    in `protect`. After its return, the checkpoint survives a power cut. At most one save of a directory may
    be under way. Both raise CheckpointError when the checkpoint cannot be written (a full disk); earlier
    checkpoints are then unchanged.
    """
    final = directory / f"{PREFIX}{state.step:06d}"
    beside = directory / f".writing-{final.name}"

    def begin() -> Callable[[], None]:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_partial(directory)
        beside.mkdir()
        trainer.learner.export(beside)
        tokenizer.save_pretrained(str(beside))
        content = {
            "format": FORMAT,
            "step": state.step,
            "trainer": trainer.state_dict(),
            "rollouts": dict(state.rollouts),
        }
        (beside / "progress.json").write_text(json.dumps(content))
        return trainer.learner.save(beside / "state")

    def complete() -> Path:
        wait()
        _mark_complete(beside)
        if final.exists():  # it was incomplete, or the run was rolled back to an earlier step
            remove_directory(final)
        beside.rename(final)
        sync_directory(directory)
        for old in _steps(directory)[keep:]:
            if _step(old) not in protect:
                remove_directory(old)
        return final

    wait = _explained(begin, beside, final)
    return lambda: _explained(complete, beside, final)


def _explained(write: Callable[[], T], beside: Path, final: Path) -> T:
    """Return `write()`; on an error remove the partial folder, and raise a write error as CheckpointError."""
    try:
        return write()
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not isinstance(error, (OSError, SafetensorError, RuntimeError, CheckpointError)):
            raise
        raise CheckpointError(  # torch wraps OSError in RuntimeError
            f"the checkpoint {final} cannot be written ({reason(error)}): free some space and run the "
            "same command again; earlier checkpoints are complete"
        ) from error


def latest(directory: Path) -> Path | None:
    """Return the newest complete checkpoint, or None where there is no checkpoint.

    A folder without its completion marker is skipped with a warning. Raises CheckpointError when a complete
    checkpoint is damaged, or when checkpoints exist but none is complete.
    """
    found = _steps(directory)
    for index, path in enumerate(found):
        if (path / MARKER).is_file():
            before = next((p for p in found[index + 1 :] if (p / MARKER).is_file()), None)
            _verify(path, before)
            return path
        log.warning("%s is incomplete and skipped", path)
    if found:
        raise CheckpointError(
            f"none of the checkpoints in {directory} is complete: restore one, or delete the folder "
            "to start again"
        )
    return None


def restore(path: Path, trainer: Trainer) -> TrainState:
    """Restore the learner's state and the trainer's counters; return the state of the run.

    The weights are copied into the learner's in place, so an engine that shares the tensors is updated too.
    Raises CheckpointError.
    """
    content = _progress(path)
    trainer.learner.load(path / "state")
    trainer.load_state_dict(content["trainer"])
    return TrainState(step=content["step"], rollouts=content["rollouts"])


def read_state(path: Path) -> TrainState:
    content = _progress(path)
    return TrainState(step=content["step"], rollouts=content["rollouts"])


def _progress(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path / "progress.json").read_text())
    if (found := content.get("format", 1)) != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} has format {found}, and this version of Hone reads format {FORMAT}: "
            "continue with the version that wrote it, or start again in another run_dir"
        )
    return content


def _mark_complete(folder: Path) -> None:
    """Write the sizes and checksums of all files, and flush everything to the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = dict(zip((str(path.relative_to(folder)) for path in files), _checksums(files), strict=True))
    (folder / MARKER).write_text(json.dumps(checksums, indent=1))
    for path in [*files, folder / MARKER]:
        sync_file(path)
    for path in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync_directory(path)


def _verify(path: Path, before: Path | None) -> None:
    advice = (
        f"delete {path} to continue from {before.name if before else 'the beginning'}, or restore the file"
    )
    try:
        checksums: dict[str, list[Any]] = json.loads((path / MARKER).read_text())
    except ValueError as error:
        raise CheckpointError(f"{path / MARKER} is damaged: {advice}") from error
    for name, (size, _) in checksums.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"the checkpoint {path} lacks the file {name}: {advice}")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}: {advice}")
    found = _checksums(path / name for name in checksums)
    for (name, (_, digest)), (_, now) in zip(checksums.items(), found, strict=True):
        if now != digest:
            raise CheckpointError(f"{path / name} has been changed since it was written: {advice}")


def _checksums(paths: Iterable[Path]) -> list[list[Any]]:
    """Return [size in bytes, SHA-256] of each file; several are read at once."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(_checksum, paths))


def _checksum(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _steps(directory: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    return sorted(directory.glob(f"{PREFIX}*"), key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def _remove_partial(directory: Path) -> None:
    """Remove checkpoints that a killed process wrote or deleted only in part."""
    for pattern in (".writing-*", ".*.deleting"):
        for path in directory.glob(pattern):
            shutil.rmtree(path)
