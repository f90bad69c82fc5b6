"""The recipe as processes of another program read it, which may run in other directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hone.config import RunSettings, dump
from hone.launch.rundir import with_model
from hone.policy.hub import hub_name
from hone.utils.files import write_file


def write_recipe(path: Path, settings: RunSettings) -> None:
    """Write the settings with every path that rollouts read absolute."""
    write_file(path, dump(_absolute(settings)))


def hub_or_folder(model: Path) -> Path:
    """Return the name of a hub model, or the absolute path of a folder."""
    return model if hub_name(model) else model.resolve()


def _absolute(settings: RunSettings) -> RunSettings:
    tasks, source = settings.tasks, Path(settings.tasks.source)
    files = {"evaluation": tasks.evaluation, "validation_source": tasks.validation_source}
    paths: dict[str, Any] = {name: path.resolve() for name, path in files.items() if path is not None}
    if source.exists():
        paths["source"] = str(source.resolve())
    moved = settings.model_copy(
        update={"run_dir": settings.run_dir.resolve(), "tasks": tasks.model_copy(update=paths)}
    )
    return moved if settings.model is None else with_model(moved, hub_or_folder(settings.model.path))
