"""`hone tasks mine`"""

from __future__ import annotations

import os
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
    from hone.curate.mining.mine import Report
    from hone.policy.settings import OpenAIEngineSettings


WRITER_KEY = "HONE_WRITER_KEY"
_CONTEXT = 32768  # tokens of the writer's model, at least

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


WriterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL[#MODEL]",
        help="OpenAI-compatible endpoint, with its /v1, whose model writes the statements from the fix and "
        "its tests; MODEL where it serves several. Its key: the variable HONE_WRITER_KEY.",
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
    writer: WriterOption = None,
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

    A bundle of the repository is written beside FILE, which names it without its folder: both can be moved.
    A stopped run continues from FILE.partial when run again. Exit code 1 if no commit became a task.

    [bold]Example[/bold]: hone tasks mine ../my-project -o tasks.jsonl --limit 50 --since 2022-01-01
    """
    from hone.curate.mining.settings import MiningSettings
    from hone.curate.mining.statement import read_issues
    from hone.launch.mining import MiningJob, mine_repository

    run = resolve_provider(provider, [f"grading.concurrency={os.cpu_count() or 1}", *(sets or [])])
    job = MiningJob(
        repository=repo,
        out=out,
        settings=MiningSettings(repeats=repeat, tests=tuple(tests or ())),
        branch=branch,
        since=since,
        issues=read_issues(issues) if issues is not None else {},
        limit=limit,
        writer=writer_settings(writer) if writer is not None else None,
    )
    mined = run_with_progress(lambda reporter: mine_repository(run, job, reporter))
    _print(mined.report, mined.commits, out, as_json=as_json)
    return 0 if mined.report.tasks else FAILED


def writer_settings(writer: str) -> OpenAIEngineSettings:
    """Return the endpoint of --writer; asks it for its model where none is named.

    Raises UsageError for several models, EngineError when the endpoint does not answer.
    """
    from hone.cli.errors import UsageError
    from hone.launch.engine import find_endpoint
    from hone.policy.settings import OpenAIEngineSettings

    url, _, model = writer.partition("#")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--writer {writer} is no address: pass one such as http://host:8000/v1")
    key_env = WRITER_KEY if WRITER_KEY in os.environ else ""
    if not model:
        endpoint = find_endpoint(url, "openai", key=os.environ.get(WRITER_KEY))
        names = [served.name for served in endpoint.served]
        if len(names) != 1:
            raise UsageError(
                f"--writer {url} serves {', '.join(names) or 'no model'}: add #MODEL to the address"
            )
        url, model = endpoint.url, names[0]
    return OpenAIEngineSettings(urls=(url,), model_name=model, api_key_env=key_env, context_tokens=_CONTEXT)


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
