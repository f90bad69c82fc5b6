"""Two to six runs over each other: charts with one series per run, two evaluations paired task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hone.config import same_results
from hone.evaluate.comparison import RunComparison, compare_runs
from hone.evaluate.errors import EvaluateError
from hone.evaluate.results import samples_by_task
from hone.evaluate.statistics import resolve_rate
from hone.view.errors import NotFound
from hone.view.reader import RunReader
from hone.view.recipe import differences_between
from hone.view.records import ComparisonPage, Panel, Point, RunKind, Series
from hone.view.run_page import run_page
from hone.view.runs import run_line

Chart = tuple[str, tuple[Series, ...]]  # title, one series per run
COMPARED = (2, 6)  # runs of a comparison: at least, and at most, as one chart can show
# Settings that name the measured policy, and one without effect on it.
EXPECTED_DIFFERENCES = ("model", "engine.model_name", "tasks.allow_overlap")


def comparison_page(readers: Sequence[RunReader]) -> ComparisonPage:
    """Return two to six runs over each other. Raises NotFound for another number of runs."""
    fewest, most = COMPARED
    if not fewest <= len(readers) <= most:
        raise NotFound(f"{len(readers)} runs were named: compare two to {most}")
    pages = [
        evaluation_panels(reader) if reader.kind is RunKind.EVALUATION else run_page(reader).panels
        for reader in readers
    ]
    lines = tuple(run_line(reader) for reader in readers)
    paired, unpaired = _paired(readers)
    return ComparisonPage(
        runs=lines,
        panels=_panels([line.name for line in lines], pages),
        differences=differences_between(readers),
        paired=paired,
        unpaired=unpaired,
    )


def compare_evaluations(first: Path, second: Path) -> RunComparison:
    """Return the comparison of two evaluations by task, with the settings that should not differ but do.

    Raises EvaluateError when one evaluation is missing, or when they share no task.
    """
    return compare_runs(first, second, ignored=(*same_results(), *EXPECTED_DIFFERENCES))


def _paired(readers: Sequence[RunReader]) -> tuple[RunComparison | None, str]:
    """Return the comparison of two evaluations; of those that cannot be paired, the reason."""
    if len(readers) != 2 or any(reader.kind is not RunKind.EVALUATION for reader in readers):
        return None, ""
    try:
        return compare_evaluations(*(reader.directory for reader in readers)), ""
    except EvaluateError as error:
        return None, str(error)


def evaluation_panels(reader: RunReader) -> tuple[Panel, ...]:
    """Return the resolve rate of an evaluation with its interval, as a panel of one point."""
    rows = [dict(row) for row in reader.results()]
    rate = resolve_rate(samples_by_task(rows))
    if not rate.n:
        return ()
    point = Point(step=0, value=rate.rate, low=rate.low, high=rate.high)
    series = Series(name="resolve_rate", title="resolve rate", unit="%", points=(point,))
    note = "Share of the samples that resolve their task, with its 95 % interval over tasks."
    return (Panel(title="Resolve rate", note=note, series=(series,)),)


def _panels(names: Sequence[str], pages: Sequence[Sequence[Panel]]) -> tuple[Chart, ...]:
    """Return a chart of every metric, with one series per run that has it, titled by the run's name."""
    charts: dict[str, tuple[str, list[Series]]] = {}
    for name, panels in zip(names, pages, strict=True):
        for panel in panels:
            for series in panel.series:
                same = panel.title.lower() == series.title.lower() or len(panel.series) == 1
                title = panel.title if same else f"{panel.title}: {series.title}"
                chart = charts.setdefault(series.name, (title, []))
                chart[1].append(replace(series, title=name))
    return tuple((title, tuple(series)) for title, series in charts.values())
