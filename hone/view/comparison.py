"""Two to six runs over each other: the same charts with one series per run, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hone.view.errors import NotFound
from hone.view.reader import RunReader
from hone.view.recipe import differences_between
from hone.view.records import ComparisonPage, RunPage, Series
from hone.view.run_page import run_page

MOST = 6  # runs that one chart can show


def comparison_page(readers: Sequence[RunReader]) -> ComparisonPage:
    """Return two to six trainings over each other. Raises NotFound for another number of runs."""
    if not 2 <= len(readers) <= MOST:
        raise NotFound(f"{len(readers)} runs were named: compare two to {MOST}")
    pages = [run_page(reader) for reader in readers]
    return ComparisonPage(
        runs=tuple(page.line for page in pages),
        panels=_panels(pages),
        differences=differences_between(readers),
    )


def _panels(pages: Sequence[RunPage]) -> tuple[tuple[str, tuple[Series, ...]], ...]:
    """Return a chart of every metric, with one series per run that has it, titled by the run's name."""
    charts: dict[str, tuple[str, list[Series]]] = {}
    for page in pages:
        for panel in page.panels:
            for series in panel.series:
                same = panel.title.lower() == series.title.lower() or len(panel.series) == 1
                title = panel.title if same else f"{panel.title}: {series.title}"
                chart = charts.setdefault(series.name, (title, []))
                chart[1].append(replace(series, title=page.line.name))
    return tuple((title, tuple(series)) for title, series in charts.values())
