"""Seeds bugs into a repository in sandboxes (`hone tasks mutate`)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hone.config import RunSettings
from hone.curate.mutation.engine import MutationReport, Step
from hone.curate.mutation.engine import mutate as seed_bugs
from hone.launch.reporter import Reporter
from hone.sandbox import make_provider
from hone.types import Task


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

    async def run() -> MutationReport:
        with (
            tempfile.TemporaryDirectory(prefix="hone-mutate-", ignore_cleanup_errors=True) as cache,
            reporter.stage("tasks", count) as stage,
        ):
            shown = 0

            def progress(step: Step) -> None:
                nonlocal shown
                found(step.tasks)
                admitted = min(count, len(step.tasks))
                stage.advance(admitted - shown)
                shown = admitted
                stage.set_status(step.message)

            async with make_provider(settings.sandbox) as provider:
                report = await seed_bugs(
                    repository,
                    count=count,
                    provider=provider,
                    cache=Path(cache),
                    settings=settings.grading,
                    limits=settings.sandbox.limits(),
                    seed=seed,
                    commit=commit,
                    tests=tests,
                    repeats=repeats,
                    journal=journal,
                    progress=progress,
                )
            stage.advance(len(report.tasks) - shown)
            stage.set_status(f"{report.ran} bugs tried")
            return report

    return asyncio.run(run())
