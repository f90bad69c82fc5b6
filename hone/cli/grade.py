"""`hone grade`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hone.cli.errors import FAILED, UsageError
from hone.cli.options import (
    JsonOption,
    ProviderOption,
    RepoRootOption,
    SetOption,
    VenvOption,
    resolve_provider,
    run_with_progress,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.grading.predictions import Prediction
    from hone.launch.reporter import Reporter
    from hone.types import Task

_SHOWN = 20  # lines printed of a longer list


OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Directory of the reports.")
]


def grade(
    tasks: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Tasks, or rows of a data set that Hone recognises by its columns."
        ),
    ],
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="SWE-bench predictions: .jsonl or .json of instance_id, model_name_or_path and model_patch; "
            "or the word gold.",
        ),
    ] = None,
    out: OutOption = None,
    provider: ProviderOption = "namespaces",
    repo_root: RepoRootOption = None,
    venv: VenvOption = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A test_output.txt of the SWE-bench harness.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Task of --log.")] = None,
    edition: Annotated[
        Literal["4", "5"], typer.Option(help="Major version of the SWE-bench harness that wrote --log.")
    ] = "5",
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Grade patches by running hidden tests, or grade a stored test log.

    Each patch is applied in a fresh sandbox without network; the task's own files replace all test files. The
    results are DIR/<instance_id>/report.json (the SWE-bench harness's format, plus outcome and evidence) and
    DIR/summary.json. A second run grades only patches that are new, changed or without a verdict. Exit code 1
    if a patch has no verdict.

    [bold]Example[/bold]: hone grade --tasks tasks.jsonl --predictions preds.jsonl -o reports

    [bold]Example[/bold]: hone grade --tasks tasks.jsonl --task django__django-11490 --log test_output.txt
    """
    if (predictions is None) == (log is None):
        raise UsageError("pass either --predictions (run tests) or --log (read a test log)")
    if log is not None:
        _grade_log(tasks, log, task, edition, as_json=as_json)
        return 0
    if out is None:
        raise UsageError("-o is missing: pass the directory of the reports")
    settings = resolve_provider(provider, sets, venv)
    return _grade_predictions(settings, tasks, predictions or Path(), out, repo_root, as_json=as_json)


def _grade_predictions(
    settings: RunSettings, tasks_file: Path, predictions: Path, out: Path, root: Path | None, *, as_json: bool
) -> int:
    from hone.cli.output import print_json
    from hone.grading.predictions import read_predictions

    tasks = load_usable_tasks(tasks_file)
    read = read_predictions(predictions, tasks)
    for sentence in read.refused:
        typer.echo(sentence, err=True)
    wanted = {prediction.instance_id for prediction in read.predictions}
    chosen = [task for task in tasks if task.id in wanted]

    def job(reporter: Reporter) -> dict[str, Any]:
        from hone.launch.tasks import grade_with_progress, localise_tasks

        found, refused = localise_tasks(chosen, root, settings, reporter)
        for sentence in refused.values():
            reporter.note(sentence)
        others = [task for task in tasks if task.id not in wanted]
        summary = grade_with_progress(
            settings, [*found, *others], _known(read.predictions, refused), out, reporter
        )
        return {**summary, "refused_rows": list(read.refused), "refused_tasks": refused}

    summary = run_with_progress(job)
    if as_json:
        print_json(summary)
    else:
        _print(summary, out)
    return FAILED if summary["error_ids"] or summary["refused_tasks"] or summary["unknown_ids"] else 0


def _known(predictions: tuple[Prediction, ...], refused: dict[str, str]) -> list[Prediction]:
    return [prediction for prediction in predictions if prediction.instance_id not in refused]


def load_usable_tasks(path: Path) -> list[Task]:
    """Return the usable tasks of a file and print the others to stderr. Raises UsageError without any."""
    from hone.tasks.files import read_rows, tasks_of

    imported = tasks_of(read_rows(path), path)
    for each in imported.refused:
        name = f" ({each.id})" if each.id else ""
        typer.echo(f"{path}: row {each.row}{name}: {each.reason}", err=True)
    if not imported.tasks:
        raise UsageError(f"{path} has no usable task")
    return list(imported.tasks)


def _print(summary: dict[str, Any], out: Path) -> None:
    for name in summary["unknown_ids"][:_SHOWN]:
        typer.echo(f"{name}: unknown task id", err=True)
    for title in ("resolved", "unresolved", "tampered", "empty_patch", "error"):
        if named := summary[f"{title}_ids"]:
            typer.echo(f"{title.replace('_', ' ')}: {len(named)}")
    for name in [*summary["tampered_ids"], *summary["error_ids"]][:_SHOWN]:
        typer.echo(f"  {name}: {summary['instances'][name]['evidence']}")
    graded = summary["completed_instances"]
    typer.echo(f"{out}: {summary['resolved_instances']} of {graded} graded patches resolve their task.")


def _grade_log(tasks_file: Path, log: Path, task_id: str | None, edition: str, *, as_json: bool) -> None:
    from hone.cli.output import print_json
    from hone.grading.errors import LogRefused
    from hone.grading.rules import Edition
    from hone.grading.verdict import grade_log, log_entry

    if task_id is None:
        raise UsageError("--task is missing: pass the task of --log")
    found = {each.id: each for each in load_usable_tasks(tasks_file)}.get(task_id)
    if found is None:
        raise UsageError(f"{tasks_file} has no task {task_id}")
    report, refused = None, ""
    try:
        report = grade_log(found, _read(log), Edition(edition))
    except LogRefused as refusal:
        refused = str(refusal)
    if as_json:
        print_json({task_id: log_entry(report)})
        return
    if report is None:
        typer.echo(f"{task_id}: not resolved: {refused}.")
        return
    fixed, kept = report.fail_to_pass, report.pass_to_pass
    numbers = [f"{len(each.success)} of {len(each.success) + len(each.failure)}" for each in (fixed, kept)]
    typer.echo(f"{task_id}: {report.resolution}: {numbers[0]} tests fixed, {numbers[1]} kept.")
    failing = [*fixed.failure, *kept.failure]
    for test in failing[:_SHOWN]:
        typer.echo(f"  {test}")
    if len(failing) > _SHOWN:
        typer.echo(f"  and {len(failing) - _SHOWN} more")


def _read(log: Path) -> str:
    """Return the text of a log; invalid UTF-8 is replaced, as the SWE-bench harness does."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {log}: {error.strerror}") from None
