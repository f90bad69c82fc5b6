"""The report of `hone tasks import --report`: gradeability by row, and statistics of the data set."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from hone.tasks.gradeability import Assessment, Gradeability

if TYPE_CHECKING:
    from hone.tasks.files import Imported
    from hone.tasks.statistics import Distribution, Statistics
    from hone.types import Task

_SHOWN = 20  # rows and names printed; --json has all


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """What becomes of one row."""

    row: int  # counted from 1
    id: str
    status: Gradeability
    reason: str  # empty for a gradeable row


def assess_rows(imported: Imported) -> tuple[list[RowReport], list[Task]]:
    """Return the report of every row, in their order, and the tasks that are not refused."""
    from hone.grading.assess import assess

    rows = [
        RowReport(row=each.row, id=each.id, status=Gradeability.REFUSED, reason=each.reason)
        for each in imported.refused
    ]
    kept: list[Task] = []
    for number, task in zip(imported.numbers, imported.tasks, strict=True):
        found: Assessment = assess(task)
        rows.append(RowReport(row=number, id=task.id, status=found.status, reason=found.reason))
        if found.status is not Gradeability.REFUSED:
            kept.append(task)
    return sorted(rows, key=lambda each: each.row), kept


def report_json(rows: list[RowReport], tasks: list[Task]) -> dict[str, Any]:
    """Return the report as JSON values."""
    from hone.tasks.statistics import describe

    return {
        "gradeability": _counts(rows),
        "rows": [dataclasses.asdict(each) for each in rows],
        "statistics": dataclasses.asdict(describe(tasks)) if tasks else None,
    }


def print_report(rows: list[RowReport], tasks: list[Task]) -> None:
    """Print the counts, the reasons with the number of rows of each, and the statistics."""
    from hone.cli.output import print_table
    from hone.tasks.statistics import describe

    print_table(("gradeability", "rows"), list(_counts(rows).items()))
    reasons = Counter(
        (each.status, each.reason)
        for each in rows
        if each.status in (Gradeability.REFUSED, Gradeability.NEEDS_EXTRA)
    )
    if reasons:
        examples = {(each.status, each.reason): each.id or f"row {each.row}" for each in reversed(rows)}
        print_table(
            ("status", "rows", "first", "reason"),
            [
                (status, count, examples[status, reason], reason)
                for (status, reason), count in reasons.most_common(_SHOWN)
            ],
        )
    if len(reasons) > _SHOWN:
        typer.echo(f"and {len(reasons) - _SHOWN} more reasons; all with --json")
    if tasks:
        _print_statistics(describe(tasks))


def _counts(rows: list[RowReport]) -> dict[str, int]:
    found = Counter(each.status for each in rows)
    return {status.value: found[status] for status in Gradeability}


def _print_statistics(found: Statistics) -> None:
    from hone.cli.output import print_fields, print_table

    print_fields(
        {
            "tasks": found.tasks,
            "languages": found.languages,
            "repositories": _first(found.repositories),
            "years": found.years,
        }
    )
    sizes = {
        "fail-to-pass tests": found.fail_to_pass,
        "pass-to-pass tests": found.pass_to_pass,
        "changed lines of the fix": found.patch_lines,
        "changed files of the fix": found.patch_files,
        "characters of the statement": found.statement_characters,
    }
    print_table(
        ("size", "smallest", "median", "mean", "largest"),
        [(name, *_numbers(size)) for name, size in sizes.items()],
    )
    print_table(
        ("tasks that are also in", "same repository", "same id", "same commit", "same statement"),
        [
            (name, each.repositories, len(each.ids), len(each.commits), len(each.statements))
            for name, each in found.overlaps.items()
        ],
    )


def _first(counts: Any) -> str:
    named = [f"{name} {count}" for name, count in counts.items()]
    more = f", and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def _numbers(size: Distribution) -> tuple[float, float, float, float]:
    return size.smallest, size.median, size.mean, size.largest
