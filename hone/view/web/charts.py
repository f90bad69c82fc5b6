"""Geometry of charts: what templates draw as SVG and scripts show under the pointer. Plain numbers only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.view.records import Lane, OutcomeSteps, Panel, Point, Series
from hone.view.web.figures import figure, outcome_class, outcome_order

WIDTH, HEIGHT = 460.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 10.0, 24.0  # margins for labels
COLOURS = 6  # of series, see hone.css
DRAWN = 600  # points of a series; of longer ones every n-th is drawn, and the last
LANE_HEIGHT = 18.0

Scale = Callable[[float], float]  # value -> px


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float  # px
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    title: str
    colour: int
    path: str  # of an SVG path
    band: str  # the same for its interval; "" without one
    dots: tuple[tuple[float, float], ...]  # where points are few
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """The bars of one outcome, as one path."""

    title: str
    css: str
    path: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    note: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    bars: tuple[Bars, ...]
    # JSON: {"axis": "step", "px": [...], "steps": [...], "rows": [{"name", "css", "text", "py"}]}
    hover: str
    summary: str  # for readers who do not see it

    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A lane's rectangle."""

    x: float
    y: float
    width: float
    lane: str
    turn: int | None
    label: str
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChart:
    names: tuple[tuple[str, float, str], ...]  # lane, y of its row, seconds in all
    stretches: tuple[Stretch, ...]
    ticks: tuple[Tick, ...]
    height: float
    width: float
    left: float


def panel_chart(panel: Panel) -> Chart | None:
    """Return the chart of a panel; None where no series has a point."""
    return line_chart(panel.title, panel.note, panel.series)


def line_chart(
    title: str, note: str, series: Sequence[Series], *, axis: str = "step", log: bool = False
) -> Chart | None:
    """Return a chart of series over steps; None where no series has a finite point.

    Args:
        axis: what a step is called.
        log: draw over the logarithm of the step, which is then at least 1, with a tick at each step.
    """
    kept = [(each, _finite(each.points)) for each in series]
    kept = [(each, points) for each, points in kept if points]
    if not kept:
        return None
    unit = kept[0][0].unit
    steps = sorted({point.step for _, points in kept for point in points})
    values = [v for _, points in kept for p in points for v in (p.value, p.low, p.high) if v is not None]
    low, high, y_values = _axis(min(values), max(values), unit)
    place = math.log if log else float
    across = _scale(place(steps[0]), place(steps[-1]), LEFT, WIDTH - RIGHT)

    def x_of(step: float) -> float:
        return across(place(step))

    each_step = tuple(Tick(at=round(x_of(s), 1), label=str(s)) for s in steps)
    y_of = _scale(low, high, HEIGHT - BOTTOM, TOP)
    lines = tuple(
        _line(each, points, index % COLOURS, x_of, y_of) for index, (each, points) in enumerate(kept)
    )
    by_step = [{p.step: p for p in points} for _, points in kept]
    rows = [
        {
            "name": each.title,
            "css": f"c{index % COLOURS}",
            "text": [_point_text(points.get(step), each.unit) for step in steps],
            "py": [round(y_of(points[step].value), 1) if step in points else None for step in steps],
        }
        for index, ((each, _), points) in enumerate(zip(kept, by_step, strict=True))
    ]
    return Chart(
        title=title,
        note=note,
        x_ticks=each_step if log else _step_ticks(steps[0], steps[-1], x_of),
        y_ticks=tuple(Tick(at=round(y_of(v), 1), label=_tick_label(v, unit)) for v in y_values),
        lines=lines,
        bars=(),
        hover=json.dumps(
            {"axis": axis, "px": [round(x_of(s), 1) for s in steps], "steps": steps, "rows": rows}
        ),
        summary="; ".join(_summary(each, points, axis) for each, points in kept),
    )


def outcome_chart(outcomes: Sequence[OutcomeSteps]) -> Chart | None:
    """Return stacked bars of outcomes over steps; None before the first step."""
    ordered = sorted(outcomes, key=lambda each: outcome_order(each.outcome))
    steps = sorted({step for each in ordered for step in each.counts})
    if not steps:
        return None
    totals = {step: sum(each.counts.get(step, 0) for each in ordered) for step in steps}
    low, high, y_values = _axis(0, max(1, *totals.values()), "")
    slot = (WIDTH - RIGHT - LEFT) / len(steps)
    gap = min(2.0, slot * 0.2)
    y_of = _scale(low, high, HEIGHT - BOTTOM, TOP)
    floor = dict.fromkeys(steps, 0)
    bars: list[Bars] = []
    for each in ordered:
        parts: list[str] = []
        for index, step in enumerate(steps):
            if count := each.counts.get(step, 0):
                x, y = LEFT + index * slot + gap / 2, y_of(floor[step] + count)
                height = y_of(floor[step]) - y
                parts.append(f"M{x:.1f},{y:.1f}h{slot - gap:.1f}v{height:.1f}h{gap - slot:.1f}z")
                floor[step] += count
        bars.append(
            Bars(title=each.outcome, css=outcome_class(each.outcome), path="".join(parts), total=each.total)
        )
    centre = [round(LEFT + (index + 0.5) * slot, 1) for index in range(len(steps))]
    rows = [
        {
            "name": each.outcome,
            "css": outcome_class(each.outcome),
            "text": [str(each.counts.get(step, 0) or "") for step in steps],
            "py": [None] * len(steps),
        }
        for each in ordered
    ]
    return Chart(
        title="Outcomes",
        note="How the rollouts of each step ended.",
        x_ticks=_bar_ticks(steps, centre),
        y_ticks=tuple(Tick(at=round(y_of(v), 1), label=_tick_label(v, "")) for v in y_values),
        lines=(),
        bars=tuple(bars),
        hover=json.dumps({"axis": "step", "px": centre, "steps": steps, "rows": rows}),
        summary="; ".join(f"{each.outcome}: {each.total} rollouts" for each in ordered),
    )


def rate_chart(rates: Sequence[Point]) -> Chart | None:
    """Return the chart of a task's resolve rate; None without rates."""
    series = Series(name="resolve_rate", title="Resolve rate", unit="%", points=tuple(rates))
    return line_chart("Resolve rate", "Of this task's rollouts, by the step that consumed them.", (series,))


def validation_chart(validations: Sequence[Point]) -> Chart | None:
    """Return the chart of the resolve rates of validations; None without one."""
    series = Series(name="validation", title="Resolve rate", unit="%", points=tuple(validations))
    note = "Of the validation tasks, with the weights after the step; the band is its 95 % interval."
    return line_chart("Validation", note, (series,))


def pass_chart(summary: Mapping[str, Any]) -> Chart | None:
    """Return the chart of pass@k with its interval, over log k; None for fewer than two values of k."""
    intervals: Mapping[str, Sequence[float]] = summary["pass_at_interval"]
    points = tuple(
        Point(step=int(k), value=mean, low=intervals[k][0], high=intervals[k][1])
        for k, mean in summary["pass_at"].items()
    )
    if len(points) < 2:
        return None
    series = Series(name="pass_at", title="pass@k", unit="%", points=points)
    note = (
        f"The chance that at least one of k samples resolves its task, estimated without bias from up to "
        f"{points[-1].step} samples of a task; every task counts alike. The band is the 95 % interval."
    )
    return line_chart("pass@k", note, (series,), axis="k =", log=True)


def spark_path(points: Sequence[Point], width: float = 120.0, height: float = 32.0) -> str:
    """Return the path of a small line without axes; "" for less than two points."""
    kept = _thin(_finite(points))
    if len(kept) < 2:
        return ""
    values = [point.value for point in kept]
    x_of = _scale(kept[0].step, kept[-1].step, 2, width - 2)
    y_of = _scale(min(values), max(values), height - 3, 3)
    return _path([(x_of(p.step), y_of(p.value)) for p in kept])


def lane_chart(lanes: Sequence[Lane], width: float = 980.0) -> LaneChart | None:
    """Return the chart of a rollout's time, one row for each name; None without lanes."""
    if not lanes:
        return None
    names = list(dict.fromkeys(lane.name for lane in lanes))
    end = max(lane.begins + lane.seconds for lane in lanes) or 1e-9
    left, top = 90.0, 22.0
    x_of = _scale(0.0, end, left, width - 70)
    rows = {name: top + index * (LANE_HEIGHT + 6) for index, name in enumerate(names)}
    totals = {name: sum(lane.seconds for lane in lanes if lane.name == name) for name in names}
    return LaneChart(
        names=tuple((name, rows[name], figure(totals[name], "s")) for name in names),
        stretches=tuple(
            Stretch(
                x=round(x_of(lane.begins), 2),
                y=rows[lane.name],
                width=round(max(1.0, x_of(lane.begins + lane.seconds) - x_of(lane.begins) - 0.5), 2),
                lane=lane.name,
                turn=lane.turn,
                label=f"{lane.name}{'' if lane.turn is None else f' of turn {lane.turn}'}: "
                f"{figure(lane.seconds, 's')}, from {figure(lane.begins, 's')}",
                colour=names.index(lane.name) % COLOURS,
            )
            for lane in lanes
        ),
        ticks=tuple(Tick(at=round(x_of(v), 1), label=figure(v, "s")) for v in _nice(0.0, end, 6)),
        height=top + len(names) * (LANE_HEIGHT + 6) + 4,
        width=width,
        left=left,
    )


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.value)]


def _thin(points: Sequence[Point]) -> list[Point]:
    stride = math.ceil(len(points) / DRAWN)
    return [p for i, p in enumerate(points) if i % max(1, stride) == 0 or i == len(points) - 1]


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    def scaled(value: float) -> float:
        return (start + end) / 2 if high == low else start + (value - low) / (high - low) * (end - start)

    return scaled


def _path(pairs: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in pairs) if pairs else ""


def _line(series: Series, points: Sequence[Point], colour: int, x_of: Scale, y_of: Scale) -> Line:
    drawn = _thin(points)
    bounded = [p for p in drawn if p.low is not None and p.high is not None]
    upper = [(x_of(p.step), y_of(p.high)) for p in bounded if p.high is not None]
    lower = [(x_of(p.step), y_of(p.low)) for p in reversed(bounded) if p.low is not None]
    return Line(
        title=series.title,
        colour=colour,
        path=_path([(x_of(p.step), y_of(p.value)) for p in drawn]),
        band=_path([*upper, *lower]) + "z" if bounded else "",
        dots=tuple((round(x_of(p.step), 1), round(y_of(p.value), 1)) for p in drawn)
        if len(drawn) <= 30
        else (),
        last=figure(points[-1].value, series.unit),
    )


def _axis(low: float, high: float, unit: str) -> tuple[float, float, list[float]]:
    """Return the bounds of the axis of values and its ticks."""
    if low >= 0 and low < 0.6 * high:
        low = 0.0
    if unit == "%" and low >= 0 and 0.7 < high <= 1:
        high = 1.0
    if high - low <= abs(high) * 1e-9:
        spread = abs(high) * 0.1 or 1.0
        low, high = low - (spread if low != 0 else 0), high + spread
    ticks = _nice(low, high, 4)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return low, high, [low + i * step for i in range(round((high - low) / step) + 1)]


def _nice(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round values within [low, high]."""
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick_label(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g} %"
    if value and abs(value) < 0.001:
        return f"{value:.2g}".replace("e-0", "e-")
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k" if abs(value) < 1e6 else f"{value / 1e6:.4g}M"
    return f"{value:.4g}"


def _step_ticks(first: int, last: int, x_of: Scale) -> tuple[Tick, ...]:
    if first == last:
        return (Tick(at=round(x_of(first), 1), label=str(first)),)
    found = [v for v in _nice(first, last, min(6, last - first)) if v == round(v)]
    return tuple(Tick(at=round(x_of(v), 1), label=str(round(v))) for v in found)


def _bar_ticks(steps: Sequence[int], centre: Sequence[float]) -> tuple[Tick, ...]:
    stride = max(1, math.ceil(len(steps) / 8))
    return tuple(
        Tick(at=x, label=str(s))
        for i, (s, x) in enumerate(zip(steps, centre, strict=True))
        if i % stride == 0
    )


def _point_text(point: Point | None, unit: str) -> str:
    if point is None:
        return ""
    text = figure(point.value, unit)
    if point.low is None or point.high is None:
        return text
    return f"{text} ({figure(point.low, unit)} to {figure(point.high, unit)})"


def _summary(series: Series, points: Sequence[Point], axis: str) -> str:
    """Return one sentence about a series."""
    values = [point.value for point in points]
    ends = f"{figure(values[0], series.unit)} at {axis} {points[0].step}"
    if len(points) > 1:
        ends += f" to {figure(values[-1], series.unit)} at {axis} {points[-1].step}"
    low, high = figure(min(values), series.unit), figure(max(values), series.unit)
    return f"{series.title}: {ends}, from {low} to {high}"


def share_parts(counts: Mapping[str, int], width: float = 1000.0) -> list[tuple[str, str, int, float, float]]:
    """Return one bar cut into outcomes: outcome, class, count, x, width."""
    total, x = sum(counts.values()) or 1, 0.0
    parts: list[tuple[str, str, int, float, float]] = []
    for outcome in sorted(counts, key=outcome_order):
        if count := counts[outcome]:
            size = width * count / total
            parts.append((outcome, outcome_class(outcome), count, round(x, 2), round(size, 2)))
            x += size
    return parts
