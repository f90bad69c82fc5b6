"""`hone tasks mine`"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import FAILED
from hone.cli.options import (
    JsonOption,
    ProviderOption,
    RepositoryArgument,
    SetOption,
    TasksOutOption,
    resolve_provider,
    run_with_progress,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.curate.journal import Journal
    from hone.curate.mining.candidates import Selection
    from hone.curate.mining.mine import Report
    from hone.curate.mining.settings import MiningSettings
    from hone.curate.mining.statement import Issue
    from hone.launch.reporter import Reporter, Stage
    from hone.tasks.repository import Repository


LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of tasks.")]

TestsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tests",
        metavar="GLOB",
        help="Files or directories that are tests, besides test_*.py, tests/ and those that the "
        "configuration of pytest, unittest or CI names; may be repeated.",
    ),
]


def mine(
    repo: RepositoryArgument,
    out: TasksOutOption,
    limit: LimitOption = None,
    since: Annotated[
        datetime | None,
        typer.Option(metavar="DATE", help="Only commits since this day, such as 2024-01-31."),
    ] = None,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Branch whose history to search.")] = "HEAD",
    issues: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Issues of the tracker as JSONL: number, title, body."),
    ] = None,
    tests: TestsOption = None,
    provider: ProviderOption = "namespaces",
    repeat: Annotated[
        int, typer.Option(min=1, help="Test runs without and with the fix, and gradings of each.")
    ] = 3,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make tasks from the bug fixes in a Python project's git history.

    Candidates are the commits, newest first, that change source and tests. Each candidate runs in fresh
    sandboxes: its tests must fail before the fix and pass after it, every time. The problem statement is the
    issue that the commit names (--issues), or the commit message, without the parts that reveal the fix, and
    examples from the failing tests. Only tasks whose tests demand nothing that can only be guessed, and that
    pass the checks of `hone tasks validate`, are written.

    A stopped run continues from FILE.partial when run again. Exit code 1 if no commit became a task.

    [bold]Example[/bold]: hone tasks mine ../my-project -o tasks.jsonl --limit 50 --since 2022-01-01
    """
    from hone.curate.mining.layout import configured_tests
    from hone.curate.mining.mine import read_results, report
    from hone.curate.mining.settings import MiningSettings
    from hone.curate.mining.statement import read_issues
    from hone.tasks.formats import save
    from hone.tasks.repository import Repository

    run = resolve_provider(provider, [f"grading.concurrency={os.cpu_count() or 1}", *(sets or [])])
    known = read_issues(issues) if issues is not None else {}
    repository = Repository.open(repo)
    globs = (*(tests or ()), *configured_tests(repository, repository.commit(branch)))
    settings = MiningSettings(repeats=repeat, tests=tuple(dict.fromkeys(globs)))
    commits, selection = run_with_progress(
        lambda reporter: _select(repository, branch, since, settings, reporter)
    )
    journal = _journal(repo, out, run, settings, known)
    try:
        run_with_progress(
            lambda reporter: _try(run, repository, selection, journal, settings, known, limit, reporter)
        )
    finally:
        found = report(selection, read_results(journal), limit)
        if found.tasks:
            save(found.tasks, out)
    journal.remove()
    _print(found, commits, out, as_json=as_json)
    return 0 if found.tasks else FAILED


def _select(
    repository: Repository,
    branch: str,
    since: datetime | None,
    settings: MiningSettings,
    reporter: Reporter,
) -> tuple[int, Selection]:
    """Return the number of commits, and the candidates among them."""
    from hone.curate.mining.candidates import select, walk

    with reporter.stage("reading the history") as stage:
        commits = walk(repository, branch, since)
        selection = select(repository, commits, settings)
        stage.set_status(f"{len(selection.candidates)} candidates of {len(commits)} commits")
    return len(commits), selection


def _journal(
    repo: Path, out: Path, run: RunSettings, settings: MiningSettings, issues: Mapping[int, Issue]
) -> Journal:
    from hone.curate.journal import Journal

    about = {
        "repository": str(repo.resolve()),
        "mining": settings.model_dump(mode="json"),
        "sandbox": run.sandbox.model_dump(mode="json"),
        "grading": run.grading.model_dump(mode="json"),
        "issues": {str(number): [issue.title, issue.body] for number, issue in issues.items()},
    }
    return Journal(out.with_name(f"{out.name}.partial"), about)


def _try(
    run: RunSettings,
    repository: Repository,
    selection: Selection,
    journal: Journal,
    settings: MiningSettings,
    issues: Mapping[int, Issue],
    limit: int | None,
    reporter: Reporter,
) -> None:
    """Try the candidates that the journal does not contain; without any, no sandbox starts."""
    from hone.curate.mining.mine import Result, mine, read_results
    from hone.curate.runner import Runner
    from hone.launch.tasks import run_in_sandboxes

    known = read_results(journal)
    to_try = [each for each in selection.candidates if each.id not in known]
    if len(to_try) < len(selection.candidates):
        reporter.note(f"{len(selection.candidates) - len(to_try)} commits were tried in an earlier run.")
    if not to_try:
        return
    tasks = sum(result.task is not None for result in known.values())

    async def work(runner: Runner, stage: Stage) -> None:
        def progress(result: Result) -> None:
            nonlocal tasks
            tasks += result.task is not None
            stage.advance()
            stage.set_status(f"{tasks} tasks")

        options = {"settings": settings, "issues": issues, "limit": limit, "progress": progress}
        await mine(repository, selection, journal, runner, **options)

    stage = reporter.stage("trying commits", len(to_try))
    run_in_sandboxes(Runner, run, stage, work, keep_repositories=True)


def _as_json(found: Report, commits: int, out: Path) -> dict[str, object]:
    return {
        "file": str(out) if found.tasks else None,
        "commits": commits,
        "skipped": {reason.name.lower(): count for reason, count in found.skipped.items()},
        "candidates": found.candidates,
        "tried": found.tried,
        "admitted": len(found.tasks),
        "refused": {reason.name.lower(): count for reason, count in found.refused.items()},
        "reasons": [
            {"commit": each.commit, "reason": each.reason.name.lower(), "detail": each.detail}
            for each in found.details
            if each.reason is not None
        ],
        "tasks": [task.id for task in found.tasks],
    }


def _print(found: Report, commits: int, out: Path, *, as_json: bool) -> None:
    from hone.cli.output import print_json, print_table

    if as_json:
        print_json(_as_json(found, commits, out))
        _advise(found, commits)
        return
    for title, counts in (("not tried", found.skipped), ("tried and refused", found.refused)):
        if counts:
            print_table(("commits", title), [(count, reason.value) for reason, count in counts.items()])
    where = f"{out}: " if found.tasks else ""
    typer.echo(
        f"{where}{len(found.tasks)} tasks; {found.tried} of {found.candidates} candidates were tried, "
        f"of {commits} commits."
    )
    _advise(found, commits)


def _advise(found: Report, commits: int) -> None:
    """Say what to do when no commit became a task."""
    if not found.tasks:
        typer.echo(
            f"hone: no commit of {commits} became a task: if the project's tests are not called test_*.py, "
            "name them with --tests; or seed bugs with `hone tasks mutate`",
            err=True,
        )
