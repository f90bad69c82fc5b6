"""Jobs on tasks in sandboxes, with progress: grading, validation, mining and mutation."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hone.config import ConfigError, RunSettings
from hone.grading import Grader
from hone.grading.predictions import Prediction, grade_predictions
from hone.launch.reporter import Reporter, Stage
from hone.sandbox import make_provider
from hone.tasks.errors import TaskError
from hone.tasks.local import localise
from hone.tasks.sources import CURRICULUM
from hone.types import Task
from hone.utils.files import default_cache_dir

Tool = TypeVar("Tool")
Result = TypeVar("Result")


def require_validation_tasks(settings: RunSettings, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if the run validates and has no validation task."""
    every = settings.train.validate.every
    if every and not tasks:
        advice = (
            "set tasks.validation"
            if settings.tasks.source == CURRICULUM
            else 'set tasks.validation_source, give some of its tasks metadata.split = "validation"'
        )
        raise ConfigError(
            f"train.validate.every is {every}, but {settings.tasks.source} has no validation task: {advice}, "
            "or set train.validate.every = 0"
        )


def run_in_sandboxes(
    tool: Callable[..., Tool],
    settings: RunSettings,
    stage: contextlib.AbstractContextManager[Stage],
    work: Callable[[Tool, Stage], Awaitable[Result]],
    *,
    keep_repositories: bool,
) -> Result:
    """Return what `work` returns for an open Grader or Runner. Raises ProviderUnavailable.

    Args:
        tool: the class Grader or Runner.
        keep_repositories: whether the tasks' repositories stay in Hone's cache.
    """

    async def run() -> Result:
        with stage as opened, contextlib.ExitStack() as stack:
            cache = default_cache_dir() / "workspaces"
            if not keep_repositories:
                folder = tempfile.TemporaryDirectory(prefix="hone-tasks-", ignore_cleanup_errors=True)
                cache = Path(stack.enter_context(folder))
            async with make_provider(settings.sandbox) as provider:
                limits = settings.sandbox.limits()
                made = tool(provider=provider, settings=settings.grading, cache=cache, limits=limits)
                return await work(made, opened)

    return asyncio.run(run())


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
    known = {task.id for task in tasks}
    total = sum(prediction.instance_id in known for prediction in predictions)
    resolved = 0

    async def work(grader: Grader, stage: Stage) -> dict[str, Any]:
        def progress(name: str, entry: Mapping[str, Any]) -> None:
            nonlocal resolved
            resolved += entry["resolved"]
            stage.advance()
            stage.set_status(f"{resolved} of {stage.done} resolved")

        return await grade_predictions(predictions, tasks, grader, out=out, progress=progress)

    settings = settings.model_copy(update={"grading": settings.grading.of_evaluation()})
    return run_in_sandboxes(Grader, settings, reporter.stage("grading", total), work, keep_repositories=True)
