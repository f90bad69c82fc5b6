"""`hone compare`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hone.cli.options import JsonOption


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="FIRST", help="Directory of an evaluation.", show_default=False)
    ],
    second: Annotated[
        Path, typer.Argument(metavar="SECOND", help="Directory of another.", show_default=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Compare two evaluations task by task, with an exact test.

    With one sample per task the test is McNemar's; with more, the sign test on the tasks' rates.

    [bold]Example[/bold]: hone compare runs/before runs/after
    """
    from hone.cli.errors import Refused
    from hone.cli.output import percent, print_facts, print_json
    from hone.evaluate import results
    from hone.evaluate.statistics import compare as pair
    from hone.evaluate.statistics import resolve_rate

    samples = []
    for folder in (first, second):
        rows = results.read(folder / "results.jsonl")
        if not rows:
            raise Refused(
                f"{folder} holds no evaluation (no results.jsonl in it): name what `hone eval` wrote"
            )
        samples.append(results.samples_by_task(rows.values()))
    rates = [resolve_rate(run) for run in samples]
    paired = pair(samples[0], samples[1])
    if paired.tasks == 0:
        raise Refused(f"{first} and {second} share no task: compare evaluations of the same task set")
    if as_json:
        print_json({"first": rates[0], "second": rates[1], "paired": paired})
        return
    shown = [f"{percent(r.rate)} ({100 * r.low:.1f} to {100 * r.high:.1f}) of {r.n}" for r in rates]
    print_facts(
        {
            str(first): shown[0],
            str(second): shown[1],
            "tasks in both": paired.tasks,
            "only or more often in the first": paired.first_better,
            "only or more often in the second": paired.second_better,
            "p-value": f"{paired.p_value:.3g} (exact, two-sided)",
        }
    )
