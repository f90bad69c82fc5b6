"""`hone tasks mutate`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from hone.curate.mutation.engine import MutationReport

_SHOWN = 5  # excluded tests printed

SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the choice and order of bugs.")]
RepeatOption = Annotated[
    int, typer.Option("--repeat", min=1, metavar="N", help="Gradings of each patch for admission.")
]


def mutate(
    repo: RepositoryArgument,
    out: TasksOutOption,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Number of tasks.")] = 100,
    seed: SeedOption = 0,
    commit: Annotated[str, typer.Option(metavar="NAME", help="Commit to seed bugs into.")] = "HEAD",
    tests: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Directory, file or pattern of tests to use; may be repeated. Default: all test_*.py.",
        ),
    ] = None,
    provider: ProviderOption = "namespaces",
    repeat: RepeatOption = 3,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make tasks from a Python project by seeding bugs that its tests detect.

    All tests run first on the unchanged project, with coverage; tests that do not pass every time are
    excluded. Then each seeded bug, one small change or several related ones, is tested by the tests that
    cover it. A bug becomes a task if some of them fail and most pass. The problem statement is made from the
    failures, never from the change. Only tasks that pass the checks of `hone tasks validate` are written.

    A bundle of the repository is written beside FILE, which names it without its folder: both can be moved.
    A stopped run keeps its tasks in FILE; run the same command again to continue from FILE.partial. The same
    project and seed give the same tasks. Exit code 1 if there is no task.

    [bold]Example[/bold]: hone tasks mutate ../my-project --count 200 -o tasks.jsonl

    hone tasks mutate ../my-project --tests tests/unit --seed 7 -o more.jsonl
    """
    from hone.launch.mutation import MutationJob, seed_bugs

    settings = resolve_provider(provider, [f"grading.concurrency={os.cpu_count() or 1}", *(sets or [])])
    job = MutationJob(
        repository=repo, out=out, count=count, seed=seed, commit=commit, tests=tests, repeats=repeat
    )
    report = run_with_progress(lambda reporter: seed_bugs(settings, job, reporter))
    _print(report, out, count, as_json=as_json)
    return 0 if report.tasks else FAILED


def _as_json(report: MutationReport, out: Path) -> dict[str, Any]:
    return {
        "file": str(out) if report.tasks else None,
        "modules": report.modules,
        "tests": report.tests,
        "set_aside": dict(report.excluded_tests),
        "left_out": dict(report.excluded_files),
        "offered": report.offered,
        "unreached": report.unreached,
        "candidates": report.candidates,
        "ran": report.ran,
        "admitted": len(report.tasks),
        "fell": {reason.name.lower(): number for reason, number in report.rejected.items()},
        "operators": {name: {"ran": ran, "tasks": kept} for name, (ran, kept) in report.operators.items()},
        "kinds": dict(report.kinds),
        "refused": dict(report.refused),
        "tasks": [task.id for task in report.tasks],
    }


def _print(report: MutationReport, out: Path, count: int, *, as_json: bool) -> None:
    from hone.cli.output import print_json, print_table

    if as_json:
        print_json(_as_json(report, out))
        return
    print_table(("operator", "ran", "tasks"), [(name, *counts) for name, counts in report.operators.items()])
    if report.rejected:
        print_table(("bugs", "no task because"), [(n, reason.value) for reason, n in report.rejected.items()])
    for name, reason in list(report.excluded_tests.items())[:_SHOWN]:
        typer.echo(f"Excluded: {name} {reason}.")
    if len(report.excluded_tests) > _SHOWN:
        typer.echo(f"Excluded: {len(report.excluded_tests) - _SHOWN} more; --json lists all.")
    kinds = ", ".join(f"{number} {kind}" for kind, number in report.kinds.items())
    where = f"{out}: " if report.tasks else ""
    short = f", of {count} requested" if len(report.tasks) < count else ""
    typer.echo(
        f"{where}{len(report.tasks)} tasks{f' ({kinds})' if kinds else ''}{short}; {report.ran} bugs "
        f"tried against {report.tests} tests."
    )
