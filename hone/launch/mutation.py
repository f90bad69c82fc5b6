"""Seeding bugs into a repository in sandboxes, with progress; the tasks are written with a bundle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.config import RunSettings
from hone.curate.mutation.engine import MutationReport, mutate
from hone.curate.runner import Runner
from hone.launch.admission import pace
from hone.launch.reporter import Reporter, Stage
from hone.launch.tasks import run_in_sandboxes
from hone.tasks.bundles import on_bundle, write_bundle
from hone.tasks.formats import save
from hone.tasks.repository import Repository
from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationJob:
    """What to seed bugs into, and how many."""

    repository: Path  # folder or bundle
    out: Path  # the JSONL file of tasks; a stopped run continues from `out` with the suffix `.partial`
    count: int
    seed: int = 0
    commit: str = "HEAD"
    tests: Sequence[str] | None = None  # directories, files or patterns; None: all that pytest would collect
    repeats: int = 3


def seed_bugs(run: RunSettings, job: MutationJob, reporter: Reporter) -> MutationReport:
    """Seed bugs into `job.out`, with a bundle of the repository beside it; return the report.

    Each task is in the file as soon as it is admitted.

    Raises TaskError when the repository or its tests cannot be used, GraderError when no sandbox starts.
    """
    journal = job.out.with_name(f"{job.out.name}.partial")
    repository = Repository.open(job.repository)
    tip = repository.commit(job.commit)

    def write(tasks: Sequence[Task]) -> None:
        if tasks:
            bundle = write_bundle(repository, tip, tasks[0].environment.repo, job.out.parent)
            save(on_bundle(tasks, bundle), job.out)

    async def work(runner: Runner, stage: Stage) -> MutationReport:
        started, before = time.monotonic(), sum(1 for _ in job.out.open()) if job.out.is_file() else 0

        def progress(message: str, tasks: Sequence[Task]) -> None:
            admitted = tasks[: job.count]
            if len(admitted) > stage.done:
                write(admitted)
            stage.set_done(len(admitted))
            gained = len(admitted) - before if admitted else 0
            left = pace(gained, job.count - len(admitted), time.monotonic() - started) if gained > 0 else ""
            stage.set_status(", ".join(filter(None, (message, left))))

        report = await mutate(
            job.repository,
            runner,
            count=job.count,
            seed=job.seed,
            commit=job.commit,
            tests=job.tests,
            repeats=job.repeats,
            journal=journal,
            progress=progress,
        )
        stage.set_done(len(report.tasks))
        stage.set_status(f"{report.ran} bugs tried")
        return report

    stage = reporter.stage("seeding bugs", job.count)
    report = run_in_sandboxes(Runner, run, stage, work, keep_repositories=False)
    write(report.tasks)
    journal.unlink(missing_ok=True)
    return report
