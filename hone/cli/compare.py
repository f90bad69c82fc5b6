"""`hone compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.options import JsonOption

if TYPE_CHECKING:
    from hone.evaluate.comparison import RunComparison

_SHOWN = 20  # tasks that changed


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="Directory of the first evaluation.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Directory of the second evaluation.")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the comparison as an HTML page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two evaluations task by task, with an exact test.

    The test is McNemar's for one sample per task, otherwise the sign test on the tasks' resolve rates. A
    warning lists settings other than the model that differ.

    [bold]Example[/bold]: hone compare runs/before runs/after

    [bold]Example[/bold]: hone compare runs/before runs/after --html comparison.html
    """
    from hone.cli.errors import UsageError
    from hone.cli.output import print_json
    from hone.evaluate.errors import EvaluateError
    from hone.view.comparison import compare_evaluations
    from hone.view.web.report import write_comparison

    try:
        compared = compare_evaluations(first, second)
    except EvaluateError as error:
        raise UsageError(str(error)) from None
    if html is not None:
        write_comparison(first, second, html)
    if as_json:
        print_json(compared)
    else:
        _print(compared)
        if html is not None:
            typer.echo(f"{html}: the comparison as a page.")


def _print(compared: RunComparison) -> None:
    from hone.cli.output import percent, print_fields, print_table

    rates = (compared.first, compared.second)
    shown = [f"{percent(r.rate)} ({100 * r.low:.1f} to {100 * r.high:.1f}) of {r.n}" for r in rates]
    paired = compared.paired
    print_fields(
        {
            compared.names[0]: shown[0],
            compared.names[1]: shown[1],
            "tasks in both": paired.tasks,
            "only or more often in the first": paired.first_better,
            "only or more often in the second": paired.second_better,
            "gain of the second": f"{100 * paired.gain.mean:+.1f} points "
            f"({100 * paired.gain.low:+.1f} to {100 * paired.gain.high:+.1f})",
            "p-value": f"{paired.p_value:.3g} (exact, two-sided)",
        }
    )
    typer.echo(compared.meaning)
    if compared.changed:
        changed = [
            (task.id, "{} of {}".format(*task.first), "{} of {}".format(*task.second))
            for task in compared.changed
        ]
        print_table(["task that changed", "first", "second"], _head_and_tail(changed))
    rows = [(name, one, two, f"{two - one:+d}") for name, (one, two) in compared.outcomes.items()]
    print_table(["outcome", "first", "second", "change"], rows)
    if compared.figures:
        figures = [(name, *pair) for name, pair in compared.figures.items()]
        print_table(["per sample, on average", "first", "second"], figures)
    for index, (here, there) in enumerate((("first", "second"), ("second", "first"))):
        if only := compared.unpaired[index]:
            typer.echo(
                f"Warning: {len(only)} tasks of the {here} run are not in the {there}, such as {only[0]}."
            )
    if compared.settings:
        typer.echo("Warning: settings other than the model differ:")
        different = [(name, str(one), str(two)) for name, (one, two) in compared.settings.items()]
        print_table(["setting", "first", "second"], different)


def _head_and_tail(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return all rows if they are few, else the first and the last ones."""
    if len(rows) <= _SHOWN:
        return rows
    half = _SHOWN // 2
    return [*rows[:half], (f"... {len(rows) - _SHOWN} more ...", "", ""), *rows[-half:]]
