"""Jobs on tasks in sandboxes: `hone grade` and `hone tasks validate`, `mutate` and `mine`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hone.config import RunSettings
from hone.curate import validate as curate
from hone.grading import Grader
from hone.grading.predictions import Prediction, grade_predictions
from hone.launch.reporter import Reporter
from hone.sandbox import make_provider
from hone.tasks.errors import TaskError
from hone.tasks.local import localise
from hone.types import Task
from hone.utils.files import default_cache_dir

if TYPE_CHECKING:
    from hone.curate.journal import Journal
    from hone.curate.mining.candidates import Selection
    from hone.curate.mining.settings import MiningSettings
    from hone.curate.mining.statement import Issue
    from hone.curate.mutation.engine import MutationReport
    from hone.tasks.repository import Repository

Opened = TypeVar("Opened")


@asynccontextmanager
async def _open(kind: Callable[..., Opened], settings: RunSettings, cache: Path) -> AsyncGenerator[Opened]:
    """Open the provider and yield a Grader or a Runner; `cache` holds the repositories of tasks."""
    async with make_provider(settings.sandbox) as provider:
        limits = settings.sandbox.limits()
        yield kind(provider=provider, settings=settings.grading, cache=cache, limits=limits)


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

            async with _open(Grader, settings, default_cache_dir() / "workspaces") as grader:
                return await grade_predictions(predictions, tasks, grader, out=out, progress=progress)

    return asyncio.run(run())


def validate(settings: RunSettings, tasks: Sequence[Task], n: int, reporter: Reporter) -> curate.Report:
    """Validate tasks with `n` gradings of each patch; see `hone.curate.validate`."""

    async def run() -> curate.Report:
        with (
            tempfile.TemporaryDirectory(prefix="hone-validate-") as folder,
            reporter.stage("validating tasks", len(tasks)) as stage,
        ):
            async with _open(Grader, settings, Path(folder)) as grader:
                return await curate.validate(
                    tasks, grader, repeats=n, progress=lambda admission: stage.advance()
                )

    return asyncio.run(run())


def mutate(
    settings: RunSettings,
    repository: Path,
    reporter: Reporter,
    *,
    count: int,
    seed: int,
    commit: str,
    tests: Sequence[str] | None,
    repeats: int,
    journal: Path,
    found: Callable[[Sequence[Task]], None],
) -> MutationReport:
    """Run `hone.curate.mutation.engine.mutate` with progress; `found` receives all tasks so far."""

    from hone.curate.mutation.engine import mutate as seed_bugs  # imports libcst
    from hone.curate.runner import Runner

    async def run() -> MutationReport:
        with (
            tempfile.TemporaryDirectory(prefix="hone-mutate-", ignore_cleanup_errors=True) as cache,
            reporter.stage("tasks", count) as stage,
        ):

            def progress(message: str, tasks: Sequence[Task]) -> None:
                found(tasks)
                stage.set_done(min(count, len(tasks)))
                stage.set_status(message)

            async with _open(Runner, settings, Path(cache)) as runner:
                report = await seed_bugs(
                    repository,
                    runner,
                    count=count,
                    seed=seed,
                    commit=commit,
                    tests=tests,
                    repeats=repeats,
                    journal=journal,
                    progress=progress,
                )
            stage.set_done(len(report.tasks))
            stage.set_status(f"{report.ran} bugs tried")
            return report

    return asyncio.run(run())


def mine(
    settings: RunSettings,
    repository: Repository,
    selection: Selection,
    journal: Journal,
    reporter: Reporter,
    *,
    mining: MiningSettings,
    issues: Mapping[int, Issue],
    limit: int | None,
) -> None:
    """Try the candidates that the journal does not contain, with progress."""
    from hone.curate.mining.mine import Result, read_results
    from hone.curate.mining.mine import mine as try_commits
    from hone.curate.runner import Runner

    known = read_results(journal)
    to_try = [each for each in selection.candidates if each.id not in known]
    if len(to_try) < len(selection.candidates):
        reporter.note(f"{len(selection.candidates) - len(to_try)} commits were tried in an earlier run.")

    async def run() -> None:
        tasks = sum(result.task is not None for result in known.values())
        with reporter.stage("trying commits", len(to_try)) as stage:

            def progress(result: Result) -> None:
                nonlocal tasks
                tasks += result.task is not None
                stage.advance()
                stage.set_status(f"{tasks} tasks")

            async with _open(Runner, settings, default_cache_dir() / "workspaces") as runner:
                await try_commits(
                    repository,
                    selection,
                    journal,
                    runner,
                    settings=mining,
                    issues=issues,
                    limit=limit,
                    progress=progress,
                )

    asyncio.run(run())
