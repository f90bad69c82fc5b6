from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.evaluate.words import duration, number, percent, short


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (7.0, "7"), (12345, "12,345"), (0.0314159, "0.0314"), (2.5, "2.5"), (999.96, "1000.0"),
     (12345.6, "12,346"), (-0.25, "-0.25")],
)  # fmt: skip
def test_numbers_are_short(value: float, shown: str):
    assert number(value) in (shown, shown.removesuffix(".0"))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (99_999, "99,999"), (123_456, "123 k"), (999_999, "1,000 k"), (1_674_010, "1.67 M"),
     (38_998_138, "39 M"), (5_100_000_000, "5.1 G"), (7 * 10**12, "7,000 G")],
)  # fmt: skip
def test_large_counts_have_three_digits_and_a_letter(count: int, shown: str):
    assert short(count) == shown


@given(st.floats(-1e12, 1e12))
def test_short_number_is_close_to_the_number(value: float):
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.006, abs=1e-300)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 s"), (0.417, "0.42 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3599.6, "1 h 0 min"),
     (7500, "2 h 5 min")],
)  # fmt: skip
def test_durations_use_seconds_minutes_and_hours(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_missing_rate_is_a_dash():
    assert (percent(None), percent(0.125)) == ("–", "12.5 %")  # noqa: RUF001
