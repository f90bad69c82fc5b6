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
    from hone.curate.validate import Report
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


def validate(
    source: SourceArgument,
    repeat: RepeatOption = 3,
    provider: ProviderOption = "namespaces",
    repo_root: RepoRootOption = None,
    venv: VenvOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write the admitted tasks, with their proof, to FILE."
        ),
    ] = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Validate tasks in sandboxes.

    A task is admitted if its gold patch resolves it N of N times, the empty patch never resolves it, and no
    test is flaky. Its tests get controls: changes of one expectation with which they fail N of N times, so
    that a patch under which both pass is found out. Each grading uses a fresh sandbox without network and
    measures wall time and memory. Exit code 1 if a task is rejected.

    [bold]Example[/bold]: hone tasks validate tasks.jsonl --repeat 5 -o admitted.jsonl

    [bold]Example[/bold]: hone tasks validate recipes/quickstart.toml --repeat 3 --limit 20
    """
    from hone.cli.output import print_json

    settings, tasks = _chosen(source, provider, venv, split, limit, sets)

    def job(reporter: Reporter) -> tuple[list[Task], dict[str, str], Report]:
        from hone.launch.tasks import localise_tasks
        from hone.launch.tasks import validate as prove

        found, refused = localise_tasks(tasks, repo_root, settings, reporter)
        return found, refused, prove(settings, found, repeat, reporter)

    found, unusable, report = run_with_progress(job)
    refused = {**unusable, **report.refused}
    if out is not None:
        from hone.curate.validate import with_proof
        from hone.tasks.formats import save

        save(with_proof(found, report), out)
    if as_json:
        print_json(_as_json(report, refused, repeat, provider))
        return FAILED if refused else 0
    for task_id, sentence in refused.items():
        typer.echo(f"{task_id}: {sentence}")
    admitted = len(tasks) - len(refused)
    typer.echo(f"{admitted} of {len(tasks)} tasks admitted: gold {repeat} of {repeat}, empty 0 of {repeat}.")
    if admitted:
        typer.echo(f"{report.controlled} of their {report.tests} tests have a control.")
    return FAILED if refused else 0


def _chosen(
    source: Path,
    provider: Provider,
    venv: Path | None,
    split: Split | None,
    limit: int | None,
    sets: list[str] | None,
) -> tuple[RunSettings, list[Task]]:
    from hone.cli.grade import load_usable_tasks
    from hone.config import resolve
    from hone.tasks.sources import load_splits

    if source.suffix == ".toml":
        settings = resolve(source, sets or ())
        chosen = [
            tasks[:limit] for name, tasks in load_splits(settings.tasks).named() if split in (None, name)
        ]
        return settings, [task for tasks in chosen for task in tasks]
    return resolve_provider(provider, sets, venv), load_usable_tasks(source)[:limit]


def _as_json(report: Report, refused: dict[str, str], repeat: int, provider: str) -> dict[str, Any]:
    tasks = {
        admission.task_id: {
            "admitted": admission.refusal is None,
            "reason": admission.refusal,
            "gold": [verdict.resolved for verdict in admission.gold],
            "empty": [verdict.resolved for verdict in admission.empty],
            "flaky": list(admission.flaky),
            "controlled": admission.controlled,
            "seconds": admission.seconds,
            "memory_mib": admission.memory_mib,
        }
        for admission in report.admissions
    }
    for task_id, reason in refused.items():
        tasks.setdefault(task_id, {"admitted": False, "reason": reason})
    admitted = [name for name, entry in tasks.items() if entry["admitted"]]
    return {
        "provider": provider,
        "repeat": repeat,
        "total": len(tasks),
        "admitted": admitted,
        "refused": refused,
        "tests": report.tests,
        "controlled": report.controlled,
        "tasks": tasks,
    }
