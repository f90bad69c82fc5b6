from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.evaluate.statistics import compare, mcnemar, mean_interval, mean_pass_at_k, pass_at_k, resolve_rate

samples = st.dictionaries(st.text(max_size=3), st.lists(st.booleans(), min_size=1, max_size=5), max_size=12)
Draw = Callable[[np.random.Generator, int], np.ndarray]  # generator, number of tasks -> their rates


def beta(a: float, b: float) -> Draw:
    return lambda generator, tasks: generator.beta(a, b, tasks)


# name -> (draws rates, their mean): equal tasks, alike, spread, all or nothing, and mostly unsolved
RATES: dict[str, tuple[Draw, float]] = {
    "equal": (lambda generator, tasks: np.full(tasks, 0.3), 0.3),
    "alike": (beta(8, 4), 2 / 3),
    "spread": (beta(1, 1), 0.5),
    "extreme": (beta(0.1, 0.1), 0.5),
    "hard": (beta(0.1, 0.9), 0.1),
    "hopeless": (beta(0.05, 1.95), 0.025),
}


def tail(n: int, p: float, counts: range) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in counts)


@pytest.mark.parametrize(("resolved", "n"), [(81, 263), (15, 148), (1, 29), (3, 5)])
def test_one_sample_per_task_gives_the_exact_interval(resolved: int, n: int):
    """Clopper and Pearson 1934: each bound is the rate that makes a result so extreme a 2.5 % event."""
    rate = resolve_rate({str(i): [i < resolved] for i in range(n)})
    assert (rate.resolved, rate.n, rate.rate) == (resolved, n, pytest.approx(resolved / n))
    assert tail(n, rate.low, range(resolved, n + 1)) == pytest.approx(0.025, abs=1e-8)
    assert tail(n, rate.high, range(resolved + 1)) == pytest.approx(0.025, abs=1e-8)


@pytest.mark.parametrize("n", [1, 5, 160])
def test_nothing_resolved_bounds_the_rate_from_above_only(n: int):
    low, high = mean_interval([0.0] * n)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / n), abs=1e-8))
    assert mean_interval([1.0] * n) == (pytest.approx(0.025 ** (1 / n), abs=1e-8), 1.0)


def test_interval_is_the_quantile_of_a_weighted_mean():
    """Of the values and a bound, weighed by a uniform Dirichlet distribution (Gaffke 2005)."""
    values, weights = np.array([0.0, 0.1, 0.1, 0.5, 0.9]), np.array([1.0, 4.0, 4.0, 4.0, 2.0])
    low, high = mean_interval(values, weights=weights)
    drawn = np.random.default_rng(0).exponential(size=(400_000, 6)) * np.append(weights, weights.mean())
    for bound, quantile, found in ((0.0, 0.025, low), (1.0, 0.975, high)):
        means = drawn @ np.append(values, bound) / drawn.sum(axis=1)
        assert found == pytest.approx(np.quantile(means, quantile), abs=3e-3)


def test_interval_without_samples_is_zero_to_one():
    rate = resolve_rate({})
    assert (rate.n, rate.low, rate.high) == (0, 0.0, 1.0)


def test_only_independent_samples_narrow_the_interval():
    once = resolve_rate({str(i): [i < 30] for i in range(100)})
    repeated = resolve_rate({str(i): [i < 30] * 4 for i in range(100)})
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    spread = resolve_rate({str(i): [True, False] for i in range(100)})
    certain = resolve_rate({str(i): [i < 50] for i in range(100)})
    assert spread.high - spread.low < 0.3 * (certain.high - certain.low)


@given(samples)
def test_interval_contains_its_rate_and_mirrors_with_the_outcomes(tasks):
    rate = resolve_rate(tasks)
    assert 0 <= rate.low <= rate.rate + 1e-9
    assert rate.rate - 1e-9 <= rate.high <= 1
    mirrored = resolve_rate({task: [not won for won in each] for task, each in tasks.items()})
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((rate.low, rate.high), abs=1e-8)


@cache
def interval(counts: tuple[int, ...], size: int) -> tuple[float, float]:
    return mean_interval([count / size for count in counts])


@pytest.mark.parametrize(
    ("rates", "mean"),
    [
        ({0.0: 0.7, 1.0: 0.3}, 0.3),
        ({0.5: 1.0}, 0.5),
        ({0.02: 0.9, 0.9: 0.1}, 0.108),
        ({0.1: 0.5, 0.9: 0.5}, 0.5),
    ],
)
def test_few_tasks_with_several_samples_are_covered(rates: dict[float, float], mean: float):
    """Exactly: over every result of five tasks with four samples each, which are of these rates."""
    tasks, size = 5, 4
    chances = [
        sum(share * tail(size, p, range(count, count + 1)) for p, share in rates.items())
        for count in range(size + 1)
    ]
    covered = 0.0
    for counts in itertools.combinations_with_replacement(range(size + 1), tasks):
        low, high = interval(counts, size)
        if low <= mean <= high:
            orders = math.factorial(tasks) / math.prod(map(math.factorial, Counter(counts).values()))
            covered += orders * math.prod(chances[count] for count in counts)
    assert covered >= 0.95


def coverage(draw: Draw, mean: float, tasks: int, size: int, times: int) -> float:
    generator = np.random.default_rng((tasks, size))
    counts: Sequence[np.ndarray] = [
        np.sort(generator.binomial(size, draw(generator, tasks))) for _ in range(times)
    ]
    found = [interval(tuple(map(int, each)), size) for each in counts]
    return sum(low <= mean <= high for low, high in found) / times


@pytest.mark.full
@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize(("tasks", "size"), [(5, 64), (12, 16), (40, 4)])
def test_simulated_evaluations_are_covered(name: str, tasks: int, size: int):
    times = 800
    error = math.sqrt(0.95 * 0.05 / times)
    assert coverage(*RATES[name], tasks, size, times) >= 0.95 - 3 * error


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(n: int, data: st.DataObject):
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations(range(n), k))
    hits = sum(any(i < correct for i in subset) for subset in subsets)
    assert pass_at_k(n, correct, k) == pytest.approx(hits / len(subsets))


def test_pass_at_k_skips_tasks_with_too_few_samples():
    tasks = {"a": [True, False, False, False], "b": [True, True, True, True], "c": [False]}
    four, one = mean_pass_at_k(tasks, 4), mean_pass_at_k(tasks, 1)
    assert four is not None
    assert one is not None
    assert four.mean == pytest.approx(1.0)
    assert (four.low, four.high) == pytest.approx((0.025**0.5, 1.0))
    assert one.mean == pytest.approx((0.25 + 1 + 0) / 3)
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
    assert (-one.gain.high, -one.gain.low) == pytest.approx((other.gain.low, other.gain.high), abs=1e-8)
    assert 0 < one.p_value <= 1
    assert compare(first, first).p_value == 1.0


def test_only_common_tasks_are_compared():
    result = compare({"a": [True], "b": [False], "c": [True]}, {"a": [False], "b": [False], "d": [True]})
    assert (result.tasks, result.first_better, result.second_better, result.ties) == (2, 1, 0, 1)
    assert result.gain.mean == -0.5


def test_gain_over_many_tasks_is_told_from_none():
    before = {str(i): [i % 4 == 0] * 4 for i in range(200)}
    after = {str(i): [i % 4 == 0, True, True, False] for i in range(200)}
    gain = compare(before, after).gain
    assert gain.low > 0.2
    assert gain.mean == pytest.approx(0.3125)
    assert compare(before, before).gain.low < 0 < compare(before, before).gain.high
