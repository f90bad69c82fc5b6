"""Grades predictions in sandboxes (`hone grade`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hone.config import RunSettings
from hone.grading import Grader
from hone.grading.predictions import Prediction, grade_predictions
from hone.launch.reporter import Reporter
from hone.sandbox import make_provider
from hone.tasks.errors import TaskError
from hone.tasks.local import localise
from hone.types import Task
from hone.utils.files import default_cache_dir


def workspaces_dir() -> Path:
    """Return the cache of task repositories for commands without a run directory."""
    return default_cache_dir() / "workspaces"


def localise_tasks(
    tasks: Sequence[Task], root: Path | None, settings: RunSettings, reporter: Reporter
) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks on repositories below `root`, and id -> reason for tasks without one."""
    if root is None:
        return list(tasks), {}
    locks = None if settings.grading.venv else default_cache_dir() / "locks"
    found: list[Task] = []
    refused: dict[str, str] = {}
    with reporter.stage("repositories", len(tasks)) as stage:
        for task in tasks:
            try:
                found.append(localise(task, root, locks=locks))
            except TaskError as error:
                refused[task.id] = str(error)
            stage.advance()
    return found, refused


def grade_with_progress(
    settings: RunSettings,
    tasks: Sequence[Task],
    predictions: Sequence[Prediction],
    out: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Grade predictions into `out` with progress; return the summary. Raises ProviderUnavailable."""

    async def run() -> dict[str, Any]:
        counts = {"resolved": 0, "done": 0}
        known = {task.id for task in tasks}
        total = sum(prediction.instance_id in known for prediction in predictions)
        with reporter.stage("grading", total) as stage:

            def progress(name: str, entry: Mapping[str, Any]) -> None:
                counts["done"] += 1
                counts["resolved"] += entry["resolved"]
                stage.advance()
                stage.set_status(f"{counts['resolved']} of {counts['done']} resolved")

            async with make_provider(settings.sandbox) as provider:
                grader = Grader(
                    provider,
                    settings.grading,
                    cache=workspaces_dir(),
                    limits=settings.sandbox.limits(),
                )
                return await grade_predictions(predictions, tasks, grader, out=out, progress=progress)

    return asyncio.run(run())
