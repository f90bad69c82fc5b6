"""Mining of a repository's history in sandboxes, with progress; the tasks are written with a bundle."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hone.config import RunSettings
from hone.curate.journal import Journal
from hone.curate.mining.candidates import Selection, select, walk
from hone.curate.mining.layout import configured_tests
from hone.curate.mining.mine import Report, Result, mine, read_results, report
from hone.curate.mining.settings import MiningSettings
from hone.curate.mining.statement import Issue
from hone.curate.mining.writer import Writer
from hone.curate.runner import Runner
from hone.launch.admission import pace
from hone.launch.reporter import Reporter, Stage
from hone.launch.tasks import run_in_sandboxes
from hone.policy.engine import Sampling
from hone.policy.settings import OpenAIEngineSettings
from hone.tasks.bundles import on_bundle, write_bundle
from hone.tasks.formats import save
from hone.tasks.repository import Repository

_TEMPERATURE = 0.3
_STATEMENT_TOKENS = 4096  # a model that reasons needs most of them before it writes


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningJob:
    """What to mine, and how."""

    repository: Path  # folder or bundle
    out: Path  # the JSONL file of tasks; a stopped run continues from `out` with the suffix `.partial`
    settings: MiningSettings
    branch: str = "HEAD"
    since: datetime | None = None
    issues: Mapping[int, Issue]
    limit: int | None = None
    tries: int | None = None  # of the newest candidates; None: all
    writer: OpenAIEngineSettings | None = None  # endpoint that writes the statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    commits: int
    report: Report


def mine_repository(run: RunSettings, job: MiningJob, reporter: Reporter) -> Mined:
    """Mine tasks into `job.out`, with a bundle of the repository beside it; return the report.

    The tests that the project's configuration names are added to those of the settings. When the run stops,
    the tasks found so far are in the file.

    Raises TaskError when the repository cannot be used, GraderError when no sandbox starts.
    """
    repository = Repository.open(job.repository)
    tip = repository.commit(job.branch)
    tests = dict.fromkeys((*job.settings.tests, *configured_tests(repository, tip)))
    settings = job.settings.model_copy(update={"tests": tuple(tests)})
    with reporter.stage("reading the history") as stage:
        commits = walk(repository, job.branch, job.since)
        selection = select(repository, commits, settings)
        stage.set_status(f"{len(selection.candidates)} candidates of {len(commits)} commits")
    selection = dataclasses.replace(selection, candidates=selection.candidates[: job.tries])
    journal = _journal(job, run, settings)
    try:
        _try(run, job, settings, repository, selection, journal, reporter)
    finally:
        found = report(selection, read_results(journal), job.limit)
        if found.tasks:
            name = found.tasks[0].environment.repo
            save(on_bundle(found.tasks, write_bundle(repository, tip, name, job.out.parent)), job.out)
    journal.remove()
    return Mined(commits=len(commits), report=found)


def _journal(job: MiningJob, run: RunSettings, settings: MiningSettings) -> Journal:
    about = {
        "repository": str(job.repository.resolve()),
        "mining": settings.model_dump(mode="json"),
        "sandbox": run.sandbox.model_dump(mode="json"),
        "grading": run.grading.model_dump(mode="json"),
        "writer": job.writer and job.writer.model_dump(mode="json"),
        "issues": {str(number): [issue.title, issue.body] for number, issue in job.issues.items()},
    }
    return Journal(job.out.with_name(f"{job.out.name}.partial"), about)


def _try(
    run: RunSettings,
    job: MiningJob,
    settings: MiningSettings,
    repository: Repository,
    selection: Selection,
    journal: Journal,
    reporter: Reporter,
) -> None:
    """Try the candidates that the journal does not contain; without any, no sandbox starts."""
    known = read_results(journal)
    to_try = [each for each in selection.candidates if each.id not in known]
    if len(to_try) < len(selection.candidates):
        reporter.note(f"{len(selection.candidates) - len(to_try)} commits were tried in an earlier run.")
    if not to_try:
        return
    tasks = sum(result.task is not None for result in known.values())

    async def work(runner: Runner, stage: Stage) -> None:
        started = time.monotonic()

        def progress(result: Result) -> None:
            nonlocal tasks
            tasks += result.task is not None
            stage.advance()
            left = pace(stage.done, len(to_try) - stage.done, time.monotonic() - started)
            stage.set_status(", ".join(filter(None, (f"{tasks} tasks", left))))

        async with _open_writer(job.writer) as writer:
            await mine(
                repository,
                selection,
                journal,
                runner,
                settings=settings,
                issues=job.issues,
                writer=writer,
                limit=job.limit,
                progress=progress,
            )

    stage = reporter.stage("trying commits", len(to_try))
    run_in_sandboxes(Runner, run, stage, work, keep_repositories=True)


@asynccontextmanager
async def _open_writer(engine: OpenAIEngineSettings | None) -> AsyncGenerator[Writer | None]:
    """Open the endpoint that writes statements and check that it answers. Raises EngineError."""
    if engine is None:
        yield None
        return
    from hone.policy.engines.client import Http, new_session
    from hone.policy.engines.open import read_api_key
    from hone.policy.engines.openai import OpenAIChat

    async with new_session() as session:
        http = Http(session, engine.urls[0], key=read_api_key(engine))
        await http.get("/models")
        sampling = Sampling(temperature=_TEMPERATURE, max_tokens=_STATEMENT_TOKENS, seed=0)
        yield Writer(lambda: OpenAIChat(http, engine, sampling))
