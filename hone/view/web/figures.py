"""Format values for pages: numbers with units, sizes of diagrams, names of colours."""

from __future__ import annotations

import math
import time

from hone.evaluate.words import duration, number, percent
from hone.outcomes import OUTCOME_RULES, Outcome

_ORDER = {outcome.value: index for index, outcome in enumerate(OUTCOME_RULES)}
NOTHING = "–"  # noqa: RUF001 - a dash stands for nothing


def figure(value: float | None, unit: str = "") -> str:
    """Return a value with its unit: 0.583, 79.2 % (of the share 0.792), 1.3e-13 nats, 2 min 5 s."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if unit == "%":
        return percent(value)
    if unit == "s":
        return duration(value) if value >= 0 else f"{number(value)} s"
    small = value != 0 and abs(value) < 0.001
    text = f"{value:.2g}" if small else number(round(value, 4) if abs(value) < 1e6 else float(f"{value:.3g}"))
    return f"{text} {unit}".rstrip()


def reward(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.3g}"


def points(share: float) -> str:
    """Return a difference of two shares in percentage points: "+12.5", "-3.1"."""
    return f"{100 * share:+.1f}"


def ago(at: float | None) -> str:
    """Return how long ago a Unix time was: "12 s ago", "3 h ago"."""
    if at is None:
        return NOTHING
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(at: float | None) -> str:
    """Return a Unix time as local date and time."""
    return NOTHING if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def fault(outcome: str) -> str:
    """Return who is at fault when a rollout ends so: "none", "policy" or "infrastructure"."""
    return OUTCOME_RULES[Outcome(outcome)].fault.value


def outcome_class(outcome: str | None) -> str:
    """Return the class of an outcome's colour; only known outcomes have one of their own."""
    if outcome is None:
        return "o-running"
    return f"o-{outcome}" if outcome in _ORDER else "o-other"


def outcome_order(outcome: str) -> int:
    """Sort key: outcomes in the order of `OUTCOME_RULES`, others after them."""
    return _ORDER.get(outcome, len(_ORDER))
