from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.evaluate.statistics import compare, mcnemar, mean_pass_at_k, pass_at_k, resolve_rate, wilson

samples = st.dictionaries(st.text(max_size=3), st.lists(st.booleans(), min_size=1, max_size=5), max_size=12)


@pytest.mark.parametrize(
    ("resolved", "n", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(resolved: int, n: int, low: float, high: float):
    assert wilson(resolved / n, n) == pytest.approx((low, high), abs=5e-5)


def test_interval_without_samples_is_zero_to_one():
    rate = resolve_rate({})
    assert (rate.n, rate.low, rate.high) == (0, 0.0, 1.0)


def test_one_sample_per_task_gives_wilson_interval():
    rate = resolve_rate({str(i): [i < 81] for i in range(263)})
    assert (rate.resolved, rate.n) == (81, 263)
    assert (rate.low, rate.high) == pytest.approx(wilson(81 / 263, 263))


def test_only_independent_samples_narrow_the_interval():
    once = resolve_rate({str(i): [i < 30] for i in range(100)})
    repeated = resolve_rate({str(i): [i < 30] * 4 for i in range(100)})
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    spread = resolve_rate({str(i): [True, False] for i in range(100)})
    assert (spread.low, spread.high) == pytest.approx(wilson(0.5, 200))


@given(samples)
def test_interval_contains_its_rate_and_is_wide_enough(tasks):
    rate = resolve_rate(tasks)
    assert 0 <= rate.low <= rate.rate + 1e-12
    assert rate.rate - 1e-12 <= rate.high <= 1
    low, high = wilson(rate.rate, rate.n)
    assert rate.high - rate.low >= high - low - 1e-12


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(n: int, data: st.DataObject):
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations(range(n), k))
    hits = sum(any(i < correct for i in subset) for subset in subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(hits / len(subsets))


def test_pass_at_k_skips_tasks_with_too_few_samples():
    tasks = {"a": [True, False, False, False], "b": [True, True, True, True], "c": [False]}
    assert mean_pass_at_k(tasks, 4) == pytest.approx(1.0)
    assert mean_pass_at_k(tasks, 1) == pytest.approx((0.25 + 1 + 0) / 3)
    assert mean_pass_at_k(tasks, 5) is None
    with pytest.raises(ValueError, match="at least 3"):
        pass_at_k(2, 1, 3)


def test_mcnemar_is_the_exact_binomial_test():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(1, 9) == pytest.approx(22 / 1024)
    assert mcnemar(0, 10) == pytest.approx(2 / 1024)
    assert mcnemar(59, 6) == pytest.approx(2 * sum(math.comb(65, i) for i in range(7)) / 2**65)


@given(samples, samples)
def test_comparison_is_symmetric(first, second):
    one, other = compare(first, second), compare(second, first)
    assert (one.first_better, one.second_better) == (other.second_better, other.first_better)
    assert (one.tasks, one.ties, one.p_value) == (other.tasks, other.ties, other.p_value)
    assert 0 < one.p_value <= 1
    assert compare(first, first).p_value == 1.0


def test_only_common_tasks_are_compared():
    result = compare({"a": [True], "b": [False], "c": [True]}, {"a": [False], "b": [False], "d": [True]})
    assert (result.tasks, result.first_better, result.second_better, result.ties) == (2, 1, 0, 1)
