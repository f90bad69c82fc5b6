"""Checkpoints: written to a temporary folder, fsynced, then renamed; each is complete or absent.

checkpoints/step-000012/    loadable by transformers' from_pretrained (weights, configuration, tokenizer)
    state/                  the learner's: master weights and optimiser
    trainer.pt              counters and random states
    progress.json           step, and the dispositions of its rollouts
    COMPLETE                size and SHA-256 of every other file; written last
checkpoints/.writing-...    a write in progress; the next write removes the rest of a killed one

"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError

from hone.train.errors import CheckpointError
from hone.train.trainer import Trainer
from hone.utils.files import remove_directory, sync_directory, sync_file

log = logging.getLogger(__name__)

MARKER = "COMPLETE"
PREFIX = "step-"
FORMAT = 1


class Tokenizer(Protocol):
    def save_pretrained(self, save_directory: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """State of a run after `step`; the position in the data follows from the step."""

    step: int
    rollouts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # JSON: the disposals for the ledger


def save(
    directory: Path,
    state: TrainState,
    *,
    trainer: Trainer,
    tokenizer: Tokenizer,
    keep: int,
    protect: Collection[int] = (),
) -> Path:
    """Write the checkpoint of `state.step` and return its folder.

    Deletes all others but the newest `keep` and those of the steps in `protect`.

    After the return, the checkpoint survives a power cut. Raises CheckpointError when it cannot be written
    (a full disk); earlier checkpoints are then unchanged.
    """
    final = directory / f"{PREFIX}{state.step:06d}"
    beside = directory / f".writing-{final.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_partial(directory)
        beside.mkdir()
        _write(beside, state, trainer, tokenizer)
        if final.exists():  # it was incomplete, or the run was rolled back to an earlier step
            remove_directory(final)
        beside.rename(final)
        sync_directory(directory)
        for old in _steps(directory)[keep:]:
            if int(old.name.removeprefix(PREFIX)) not in protect:
                remove_directory(old)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap OSError
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint {final} cannot be written ({_first_line(error)}): free some space and run the "
            "same command again; earlier checkpoints are complete"
        ) from error
    return final


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
    """Restore weights, optimizer and random states; return the state of the run.

    The weights are copied into the learner's in place, so an engine that shares the tensors is updated too.
    """
    trainer.learner.load(path / "state")
    state = torch.load(path / "trainer.pt", weights_only=True)
    trainer.load_state_dict(state["trainer"])
    _set_random_states(state["random"])
    return read_state(path)


def read_state(path: Path) -> TrainState:
    content = json.loads((path / "progress.json").read_text())
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path} was written by another version of Hone: choose another run directory")
    return TrainState(step=content["step"], rollouts=content["rollouts"])


def _write(folder: Path, state: TrainState, trainer: Trainer, tokenizer: Tokenizer) -> None:
    trainer.learner.export(folder)
    wait = trainer.learner.save(folder / "state")
    wait()
    tokenizer.save_pretrained(str(folder))
    torch.save({"trainer": trainer.state_dict(), "random": _random_states()}, folder / "trainer.pt")
    content = {"format": FORMAT, "step": state.step, "rollouts": dict(state.rollouts)}
    (folder / "progress.json").write_text(json.dumps(content))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {str(path.relative_to(folder)): _checksum(path) for path in files}
    (folder / MARKER).write_text(json.dumps(checksums, indent=1))
    for path in [*files, folder / MARKER]:
        sync_file(path)
    for directory in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_directory(directory)


def _verify(path: Path, before: Path | None) -> None:
    advice = (
        f"delete {path} to continue from {before.name if before else 'the beginning'}, or restore the file"
    )
    try:
        checksums: dict[str, list[Any]] = json.loads((path / MARKER).read_text())
    except ValueError as error:
        raise CheckpointError(f"{path / MARKER} is damaged: {advice}") from error
    for name, (size, digest) in checksums.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"the checkpoint {path} lacks the file {name}: {advice}")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}: {advice}")
        if _checksum(file)[1] != digest:
            raise CheckpointError(f"{file} has been changed since it was written: {advice}")


def _checksum(path: Path) -> list[Any]:
    """Return [size in bytes, SHA-256] of a file."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _steps(directory: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    return sorted(directory.glob(f"{PREFIX}*"), key=lambda p: int(p.name.removeprefix(PREFIX)), reverse=True)


def _remove_partial(directory: Path) -> None:
    """Remove checkpoints that a killed process wrote or deleted only in part."""
    for pattern in (".writing-*", ".*.deleting"):
        for path in directory.glob(pattern):
            shutil.rmtree(path)


def _random_states() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, [int(k) for k in keys], position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"].cpu())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
