"""The arena's results as a part of a page in Markdown and as plots in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.parts.arena_results import Pair, Row, Table
from hone.evaluate.statistics import Mean, Rate

MARK = "<!-- below: made by benchmarks/arena.py -->"
WIDTH, ROW, LEFT, RIGHT, TOP = 760, 26, 230, 40, 34
SIGNIFICANT = 0.05
STYLE = """<style>
.page { fill: #ffffff; } text { fill: #24292f; } .grid { stroke: #d0d7de; } .seed { fill: #0969da; }
.interval, .mean { stroke: #24292f; fill: none; } .before { stroke: #cf222e; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; } text { fill: #e6edf3; } .grid { stroke: #30363d; } .seed { fill: #4493f8; }
.interval, .mean { stroke: #e6edf3; } .before { stroke: #f85149; }
}
</style>"""


def percent(rate: Rate) -> str:
    return f"{100 * rate.rate:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f})"


def points(gain: Mean) -> str:
    return f"{100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def gained(gain: Mean) -> str:
    return points(gain) if gain.low > 0 else f"{points(gain)}: none shown"


def rows_table(rows: Sequence[Row]) -> str:
    lines = [
        "| | held-out tasks | each seed | gain | families never seen | tokens to 70 % | minutes of RL |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        each = ", ".join(f"{100 * rate:.0f}" for rate in row.seeds)
        tokens = ", ".join(f"{tokens / 1000:.0f}k" for tokens in row.tokens_to_goal) or "not reached"
        lines.append(
            f"| {row.name} | {percent(row.test)} | {each} | {gained(row.gain)} "
            f"| {percent(row.unseen)} | {tokens} | {row.seconds / 60:.1f} |"
        )
    return "\n".join(lines) + "\n"


def clearest(pair: Pair) -> str:
    """Return a sentence about the clearest difference between two rows."""
    corrected = min(1.0, pair.p_value * pair.pairs)
    verdict = "" if corrected < SIGNIFICANT else "; no row is shown to be better than another"
    if pair.pairs == 1:
        which, times = f"{pair.better} is before {pair.worse} by", ""
    else:
        which = f"the clearest of the {pair.pairs} pairs of rows are {pair.better} and {pair.worse}:"
        times = f", times {pair.pairs} pairs {corrected:.2g}"
    return (
        f"Task by task over common seeds, {which} {points(pair.gain)} points, exact sign test "
        f"p = {pair.p_value:.2g}{times}{verdict}.\n"
    )


def section(tables: Sequence[Table]) -> str:
    """Return what stands below MARK."""
    parts = ["Intervals are 95 %, of the mean over tasks; a gain is paired by task.\n"]
    for table in tables:
        parts.append(f"## {table.title}\n")
        if table.before and table.before_unseen:
            parts += [
                f"The start model resolves {percent(table.before)} of the held-out tasks and "
                f"{percent(table.before_unseen)} of the tasks of families that no training shows.\n",
                f"![{table.title}](arena-{table.stage}.svg)\n",
                rows_table(table.rows),
            ]
        if table.clearest is not None:
            parts.append(clearest(table.clearest))
        if table.failures:
            failed = (f"- {one.name}, seed {one.seed}, failed: `{one.error}`" for one in table.failures)
            parts.append("\n".join(failed) + "\n")
    return "\n".join(parts)


def plot(rows: Sequence[Row], before: Rate) -> str:
    """Return an SVG: a line per row with its interval, its mean and a dot per seed."""
    low = min([before.rate, *(min([row.test.low, *row.seeds]) for row in rows)])
    first = max(0.0, int(low * 20) / 20 - 0.05)
    height = TOP + ROW * len(rows) + 10

    def x(rate: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (rate - first) / (1 - first)

    shapes: list[str] = []
    ticks = [tick / 10 for tick in range(11) if tick / 10 >= first - 1e-9]
    for tick in ticks:
        shapes.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{height}" class="grid"/>'
        )
        shapes.append(
            f'<text x="{x(tick):.1f}" y="{TOP - 14}" text-anchor="middle">{100 * tick:.0f} %</text>'
        )
    shapes.append(
        f'<line x1="{x(before.rate):.1f}" x2="{x(before.rate):.1f}" y1="{TOP - 8}" y2="{height}" '
        'class="before"/>'
    )
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        shapes.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(row.name)}</text>')
        shapes.append(
            f'<line x1="{x(row.test.low):.1f}" x2="{x(row.test.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            'class="interval" stroke-width="2"/>'
        )
        shapes += [f'<circle cx="{x(rate):.1f}" cy="{y:.1f}" r="4" class="seed"/>' for rate in row.seeds]
        shapes.append(f'<circle cx="{x(row.test.rate):.1f}" cy="{y:.1f}" r="4" class="mean"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">{STYLE}<rect width="100%" height="100%" class="page"/>'
        f"{''.join(shapes)}</svg>\n"
    )
