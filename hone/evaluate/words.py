"""Format quantities for people."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Return three significant digits, thousands grouped: 0.0314, 2.5, 12,345."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(1, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def short(count: int) -> str:
    """Return a count, from 100,000 on in three digits and a letter: 99,999, 123 k, 1.67 M, 5.1 G."""
    if count < 100_000:
        return number(count)
    exponent = min(3, (len(str(count)) - 1) // 3)
    return f"{number(float(f'{count / 1000**exponent:.3g}'))} {' kMG'[exponent]}"


def duration(seconds: float) -> str:
    """Return a duration such as `0.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{number(round(seconds, 2))} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"  # noqa: RUF001 - a dash stands for nothing
