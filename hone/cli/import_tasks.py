"""`hone tasks import`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from hone.cli.errors import FAILED, UsageError
from hone.cli.options import JsonOption, parameters_of
from hone.tasks.gradeability import Gradeability

if TYPE_CHECKING:
    from hone.cli.import_report import RowReport
    from hone.tasks.files import Imported
    from hone.types import Task

RowFormat = Literal[
    "hone",
    "swe-bench",
    "swe-gym",
    "swe-smith",
    "swe-rebench",
    "r2e-gym",
    "slime",
    "nemo-gym",
    "kodcode",
    "debugging",
    "harbor",
]
FORMAT_HELP = f"Format of the rows: {', '.join(get_args(RowFormat))}"
_SHOWN = 20  # refused rows printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FORMAT] SOURCE",
            help="A .jsonl, .json or .parquet file, a folder of .parquet or of Harbor tasks, or a data set "
            "of the hub; before it, optionally, the name of its format.",
        ),
    ]
    format: Annotated[
        RowFormat | None,
        typer.Option(metavar="NAME", help=f"{FORMAT_HELP}; default: by the columns of each row."),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The JSONL file of tasks to write.")
    ] = None
    report: Annotated[
        bool, typer.Option("--report", help="Print which rows can be graded, why not, and statistics.")
    ] = False
    split: Annotated[str | None, typer.Option(metavar="SET", help="Split of a folder or data set.")] = None
    ids: Annotated[
        Path | None,
        typer.Option(
            "--instance-ids",
            "--ids",
            metavar="NAME|FILE",
            help="Only the tasks of a list: a file with one id per line, or django-train-201.",
        ),
    ] = None
    repo: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER/NAME", help="Only tasks of this repository; may be repeated."),
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of tasks.")] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Shuffle the tasks with this seed.")] = None
    timeout_s: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Time limit of the tests; default: the data set's own."),
    ] = None
    as_json: JsonOption = False

    @property
    def source(self) -> str:
        return self.words[-1]


@parameters_of(Flags)
def import_tasks(flags: Flags) -> int:
    """Convert the rows of a data set into tasks, and refuse those that can never be graded.

    Prints the reason for each refused row. Exit code 1 if no row is usable.

    [bold]Example[/bold]: hone tasks import verified.parquet --format swe-bench -o tasks.jsonl

    [bold]Example[/bold]: hone tasks import verified.parquet --report

    [bold]Example[/bold]: hone tasks import harbor terminal-bench/ -o tasks.jsonl
    """
    from hone.cli.import_report import assess_rows
    from hone.tasks.bundles import with_bundles
    from hone.tasks.files import import_rows, read_source
    from hone.tasks.formats import FORMATS, save

    if flags.out is None and not flags.report:
        raise UsageError("-o is missing: pass the file of tasks to write, or --report")
    name = _format(flags)
    rows = read_source(flags.source, flags.split)
    imported = import_rows(rows, FORMATS[name] if name else None)
    reports, usable = assess_rows(imported)
    tasks = _select(flags, usable)
    if tasks and flags.out is not None:
        save(with_bundles(tasks, flags.out.parent), flags.out)
    show = _print_json if flags.as_json else _print
    show(flags, imported, reports, tasks, len(usable) - len(tasks))
    return 0 if tasks else FAILED


def _format(flags: Flags) -> str | None:
    """Return the name of the format that was passed, before the source or as an option."""
    *before, _ = flags.words
    if len(before) > 1 or (before and (before[0] not in get_args(RowFormat) or flags.format)):
        raise UsageError(
            f"pass one source, and at most one format before it: {', '.join(get_args(RowFormat))}"
        )
    return before[0] if before else flags.format


def _select(flags: Flags, usable: list[Task]) -> list[Task]:
    from hone.tasks.settings import SelectSettings
    from hone.tasks.sources import limit_time, select

    chosen = SelectSettings(
        repositories=tuple(flags.repo or ()), ids_file=flags.ids, limit=flags.limit, seed=flags.seed
    )
    tasks = select(usable, chosen) if usable else ()
    return list(tasks if flags.timeout_s is None else limit_time(tasks, flags.timeout_s))


def _print_json(
    flags: Flags, imported: Imported, reports: list[RowReport], tasks: list[Task], left_out: int
) -> None:
    from hone.cli.import_report import report_json
    from hone.cli.output import print_json

    refused = [
        {"row": each.row, "id": each.id, "reason": each.reason}
        for each in reports
        if each.status is Gradeability.REFUSED
    ]
    found: dict[str, Any] = {"tasks": len(tasks), "repeated": imported.repeated, "left_out": left_out}
    print_json({**found, "refused": refused, **(report_json(reports, tasks) if flags.report else {})})


def _print(
    flags: Flags, imported: Imported, reports: list[RowReport], tasks: list[Task], left_out: int
) -> None:
    from hone.cli.import_report import print_report

    refused = [each for each in reports if each.status is Gradeability.REFUSED]
    if flags.report:
        print_report(reports, tasks)
    else:
        _print_refusals(flags.source, refused)
    selects = flags.repo or flags.ids or flags.limit or flags.seed is not None
    typer.echo(
        f"{flags.out if tasks and flags.out else flags.source}: {len(tasks)} tasks; "
        f"{len(refused)} rows refused, {imported.repeated} repeated"
        + (f", {left_out} not selected." if selects else ".")
    )


def _print_refusals(source: str, refused: list[RowReport]) -> None:
    for each in refused[:_SHOWN]:
        name = f" ({each.id})" if each.id else ""
        typer.echo(f"{source}: row {each.row}{name}: {each.reason}", err=True)
    if len(refused) > _SHOWN:
        typer.echo(f"{source}: and {len(refused) - _SHOWN} more; all with --json", err=True)
