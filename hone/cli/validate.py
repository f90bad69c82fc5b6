"""`hone tasks validate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED
from hone.cli.options import (
    JsonOption,
    Provider,
    ProviderOption,
    RepoRootOption,
    SetOption,
    Split,
    VenvOption,
    resolve_provider,
    run_with_progress,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.curate.journal import Journal
    from hone.curate.record import Report
    from hone.launch.reporter import Reporter
    from hone.types import Task


SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Tasks, rows of a data set that Hone recognises by its columns, or a recipe (.toml).",
    ),
]
RepeatOption = Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Gradings of each patch.")]
SplitOption = Annotated[Split | None, typer.Option("--split", help="Only this set of a recipe.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="Maximum number of tasks (of each set).")
]


PoolOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Use the sandboxes of the pool server at URL, such as http://head:18090."
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write the admitted tasks, with their proof, to FILE, and a data card beside it.",
    ),
]
CheckOption = Annotated[
    Path | None,
    typer.Option(metavar="CARD", help="Only check that FILE is what the data card CARD describes."),
]


def validate(
    source: SourceArgument,
    repeat: RepeatOption = 3,
    provider: ProviderOption = "namespaces",
    pool: PoolOption = None,
    repo_root: RepoRootOption = None,
    venv: VenvOption = None,
    out: OutOption = None,
    check: CheckOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Validate tasks in sandboxes.

    A task is admitted if its gold patch resolves it N of N times, the empty patch never resolves it, and no
    test is flaky. The first run is as a grading; the others vary the hash seed, the order of tests, the time
    zone, the locale and the number of test processes, and a test that changes is refused with the cause. The
    tests get controls: changes of one expectation with which they fail N of N times, so that a patch under
    which both pass is found out. Each grading uses a fresh sandbox without network.

    As many tasks at once as grading.concurrency says. With -o, a stopped run continues from FILE.partial, and
    the data card says how each task was decided (FILE.card.json, FILE.card.html without the suffix of FILE).
    Exit code 1 if a task is rejected.

    [bold]Example[/bold]: hone tasks validate tasks.jsonl --repeat 5 -o admitted.jsonl

    [bold]Example[/bold]: hone tasks validate tasks.jsonl --pool http://head:18090 -o admitted.jsonl

    [bold]Example[/bold]: hone tasks validate --check admitted.card.json admitted.jsonl
    """
    from hone.cli.output import print_json

    if check is not None:
        return _check(check, source)
    settings, tasks = _chosen(source, provider, pool, venv, split, limit, sets)
    every, journal, report = _validate(settings, tasks, repo_root, out, repeat)
    if out is not None:
        from hone.launch.admission import write_results

        write_results(report, every, out, settings, source=source.name, repeats=repeat)
    if as_json:
        print_json(_as_json(report, repeat, settings.sandbox.provider))
    else:
        _print(report, repeat, out)
    refused = report.refused
    journal.remove()
    return FAILED if refused else 0


def _validate(
    settings: RunSettings, tasks: list[Task], repo_root: Path | None, out: Path | None, repeat: int
) -> tuple[list[Task], Journal, Report]:
    """Return the tasks on their repositories, the journal, and the report over all."""

    def job(reporter: Reporter) -> tuple[list[Task], Journal, Report]:
        from hone.launch.admission import open_journal, validate_tasks
        from hone.launch.tasks import localise_tasks

        found, unusable = localise_tasks(tasks, repo_root, settings, reporter)
        localised = {task.id: task for task in found}
        every = [localised.get(task.id, task) for task in tasks]
        journal = open_journal(out, every, settings, repeat)
        return every, journal, validate_tasks(settings, every, unusable, journal, repeat, reporter)

    return run_with_progress(job)


def _print(report: Report, repeat: int, out: Path | None) -> None:
    refused, total = report.refused, len(report.ids)
    for task_id, sentence in refused.items():
        typer.echo(f"{task_id}: {sentence}")
    admitted = total - len(refused)
    typer.echo(f"{admitted} of {total} tasks admitted: gold {repeat} of {repeat}, empty 0 of {repeat}.")
    if admitted:
        typer.echo(f"{report.controlled} of their {report.tests} tests have a control.")
    if out is not None:
        from hone.launch.admission import card_paths

        typer.echo(f"Data card: {' and '.join(map(str, card_paths(out)))}")


def _check(path: Path, file: Path) -> int:
    from hone.curate.card import check_card, read_card
    from hone.tasks.sources import load_all

    card = read_card(path)
    problems = check_card(card, load_all(file))
    for problem in problems:
        typer.echo(problem)
    if problems:
        typer.echo(f"{file} is not what {path} describes.")
        return FAILED
    counts = card["counts"]
    typer.echo(f"{file} is what {path} describes: {counts['admitted']} of {counts['tasks']} tasks admitted.")
    return 0


def _chosen(
    source: Path,
    provider: Provider,
    pool: str | None,
    venv: Path | None,
    split: Split | None,
    limit: int | None,
    sets: list[str] | None,
) -> tuple[RunSettings, list[Task]]:
    from hone.cli.errors import UsageError
    from hone.cli.grade import load_usable_tasks
    from hone.config import resolve
    from hone.tasks.sources import load_splits

    pooled = [] if pool is None else ["sandbox.provider=pool", f"sandbox.pool_url={pool}"]
    if pool is not None and provider == "docker":
        raise UsageError("--pool and --provider docker name two providers: pass one of them")
    if source.suffix == ".toml":
        settings = resolve(source, [*(sets or ()), *pooled])
        chosen = [
            tasks[:limit] for name, tasks in load_splits(settings.tasks).named() if split in (None, name)
        ]
        return settings, [task for tasks in chosen for task in tasks]
    settings = resolve_provider("pool" if pool else provider, [*(sets or ()), *pooled], venv)
    return settings, load_usable_tasks(source)[:limit]


def _as_json(report: Report, repeat: int, provider: str) -> dict[str, Any]:
    tasks = {
        record.task_id: {
            "admitted": record.reason is None,
            "reason": record.detail,
            "gold": list(record.gold),
            "empty": list(record.empty),
            "flaky": list(record.flaky),
            "causes": dict(record.flaky),
            "controlled": record.controlled,
            "seconds": record.seconds,
            "memory_mib": record.memory_mib,
        }
        for record in report.records()
    }
    admitted = [name for name, entry in tasks.items() if entry["admitted"]]
    return {
        "provider": provider,
        "repeat": repeat,
        "total": len(tasks),
        "admitted": admitted,
        "refused": report.refused,
        "tests": report.tests,
        "controlled": report.controlled,
        "tasks": tasks,
    }
