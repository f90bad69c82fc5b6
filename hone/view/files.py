"""The files of a run that pages lead to, as they lie on the disk."""

from __future__ import annotations

from pathlib import Path

from hone.view.errors import NotFound
from hone.view.reader import RunReader

OF_EVALUATION = ("summary.json", "results.jsonl", "preds.jsonl", "preds.json")
OF_ROLLOUT = ("traj.json", "patch.diff", "meta.json", "verdict.json", "tokens.parquet")


def present(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the names that are files in a folder."""
    return tuple(name for name in names if (folder / name).is_file())


def stored_directory(reader: RunReader, directory: str) -> Path:
    """Return the folder of a stored rollout. Raises NotFound, also for a name that leads elsewhere."""
    folder = reader.store.root / directory
    if Path(directory).name != directory or directory in ("", ".", "..") or not folder.is_dir():
        raise NotFound(f"run {reader.name} has no stored rollout {directory!r}")
    return folder


def run_file(reader: RunReader, path: str) -> Path:
    """Return a file of an evaluation, or of a rollout: `rollouts/NAME/patch.diff`. Raises NotFound."""
    match path.split("/"):
        case [name] if name in OF_EVALUATION:
            found = reader.directory / name
        case ["rollouts", rollout, name] if name in OF_ROLLOUT:
            found = stored_directory(reader, rollout) / name
        case _:
            found = None
    if found is None or not found.is_file():
        raise NotFound(f"run {reader.name} has no file {path!r} to show")
    return found
