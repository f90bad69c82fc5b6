"""One function per kind of page, for server, API and export: path and query in, record and template out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hone.outcomes import Outcome
from hone.view.comparison import COMPARED
from hone.view.library import Library
from hone.view.records import (
    ComparisonPage,
    EvaluationPage,
    Filter,
    RunKind,
    RunLine,
    RunPage,
    RunState,
)
from hone.view.web import charts, compact
from hone.view.web.query import BadQuery, read_filter, read_first, write_filter

PER_PAGE = 100  # rollouts of a table on the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page before it is rendered."""

    template: str
    record: Any  # what the API answers
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])  # for the template, beside the record
    live: bool = False  # whether a run that it shows is still running


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a page is asked for."""

    path: Mapping[str, str]  # "run", "rollout", "group", "task"
    query: Sequence[tuple[str, str]] = ()
    per_page: int = PER_PAGE

    @property
    def filters(self) -> dict[str, str]:
        return dict(self.query)


def runs_page(library: Library, asked: Asked) -> Page:
    lines = tuple(library.runs())
    return Page(
        template="runs.html.jinja",
        record=lines,
        values={"lines": lines, "compared": compared(lines)},
        live=any(line.state is RunState.RUNNING for line in lines),
    )


def compared(lines: Sequence[RunLine]) -> list[str]:
    """Return the runs with rollouts that an export compares, the oldest first: trainings, else evaluations.

    [] where there are fewer than two of a kind, or more than one chart can show.
    """
    for kind in (RunKind.TRAINING, RunKind.EVALUATION):
        names = [line.name for line in reversed(lines) if line.kind is kind and line.rollouts]
        if COMPARED[0] <= len(names) <= COMPARED[1]:
            return names
    return []


def run_page(library: Library, asked: Asked) -> Page:
    record = library.run(asked.path["run"])
    live = record.line.state is RunState.RUNNING
    if isinstance(record, EvaluationPage):
        return Page(
            template="evaluation.html.jinja", record=record, values=evaluation_values(record), live=live
        )
    panels = [charts.panel_chart(panel) for panel in record.panels]
    every = (*panels[:1], charts.validation_chart(record.validations), *panels[1:])
    drawn = [chart for chart in every if chart is not None]
    return Page(
        template="run.html.jinja",
        record=record,
        values={
            "page": record,
            "run": record.line,
            "charts": drawn,
            "outcomes": charts.outcome_chart(record.outcomes),
            "totals": {each.outcome: each.total for each in record.outcomes},
            "heads": _heads(record),
        },
        live=live,
    )


def evaluation_values(record: EvaluationPage) -> dict[str, Any]:
    """Return what the template of an evaluation takes."""
    return {
        "page": record,
        "run": record.line,
        "totals": {each.outcome: each.total for each in record.outcomes},
        "curve": charts.pass_chart(record.summary),
    }


def _heads(record: RunPage) -> list[Any]:
    """Return the first two series, which open the page: reward and resolve rate."""
    series = [each for panel in record.panels for each in panel.series]
    return [each for each in series if each.points][:2]


def rollouts_page(library: Library, asked: Asked) -> Page:
    name, shown, first = asked.path["run"], read_filter(asked.filters), read_first(asked.filters)
    line = _line(library, name)
    table = library.rollouts(name, shown, first, asked.per_page)
    return Page(
        template="rollouts.html.jinja",
        record=table,
        values={
            "run": line,
            "table": table,
            "shown": shown,
            "query": write_filter(shown),
            "per_page": asked.per_page,
            "known_outcomes": [outcome.value for outcome in Outcome],
            "active": _active(shown),
        },
        live=line.state is RunState.RUNNING,
    )


def _active(shown: Filter) -> list[tuple[str, str, str]]:
    """Return name, value and the query without it, of each filter that hides rows."""
    default = Filter()
    return [
        (each.name, str(value), write_filter(shown, **{each.name: getattr(default, each.name)}))
        for each in dataclasses.fields(Filter)
        if each.name != "sort" and (value := getattr(shown, each.name)) != getattr(default, each.name)
    ]


def rollout_page(library: Library, asked: Asked) -> Page:
    name, directory = asked.path["run"], asked.path["rollout"]
    record = library.rollout(name, directory)
    return Page(
        template="rollout.html.jinja",
        record=record,
        values={
            "run": _line(library, name),
            "directory": directory,
            "page": record,
            "lanes": charts.lane_chart(record.lanes),
        },
    )


def tokens_page(library: Library, asked: Asked) -> Page:
    name, directory = asked.path["run"], asked.path["rollout"]
    record = library.tokens(name, directory)
    return Page(
        template="tokens.html.jinja",
        record=record,
        values={
            "run": _line(library, name),
            "directory": directory,
            "page": record,
            "data": compact.columns(record),
        },
    )


def group_page(library: Library, asked: Asked) -> Page:
    record = library.group(asked.path["run"], asked.path["group"])
    line = _line(library, asked.path["run"])
    return Page(
        template="group.html.jinja",
        record=record,
        values={"run": line, "page": record},
        live=line.state is RunState.RUNNING and any(row.outcome is None for row in record.rows),
    )


def task_page(library: Library, asked: Asked) -> Page:
    record = library.task(asked.path["run"], asked.path["task"])
    line = _line(library, asked.path["run"])
    return Page(
        template="task.html.jinja",
        record=record,
        values={"run": line, "page": record, "chart": charts.rate_chart(record.rates)},
    )


def compare_page(library: Library, asked: Asked) -> Page:
    names = list(dict.fromkeys(value for name, value in asked.query if name == "run" and value))
    fewest, most = COMPARED
    if not fewest <= len(names) <= most:
        raise BadQuery(
            f"a comparison shows {fewest} to {most} runs, not {len(names)}: choose them on the list of runs, "
            "or write /compare?run=A&run=B"
        )
    record = library.compare(names)
    return Page(
        template="compare.html.jinja",
        record=record,
        values=comparison_values(record),
        live=any(line.state is RunState.RUNNING for line in record.runs),
    )


def comparison_values(record: ComparisonPage) -> dict[str, Any]:
    """Return what the template of a comparison takes."""
    drawn = [chart for title, series in record.panels if (chart := charts.line_chart(title, "", series))]
    return {"page": record, "charts": drawn}


PAGES: Mapping[str, Callable[[Library, Asked], Page]] = {
    "/": runs_page,
    "/compare": compare_page,
    "/runs/{run}": run_page,
    "/runs/{run}/rollouts": rollouts_page,
    "/runs/{run}/rollouts/{rollout}": rollout_page,
    "/runs/{run}/rollouts/{rollout}/tokens": tokens_page,
    "/runs/{run}/groups/{group:path}": group_page,
    "/runs/{run}/tasks/{task:path}": task_page,
}
"""Path -> what makes its page."""


def _line(library: Library, name: str) -> RunLine:
    """Return the line of a run, which its pages have above them."""
    found = next((line for line in library.runs() if line.name == name), None)
    return found or library.run(name).line  # which raises where there is no such run
