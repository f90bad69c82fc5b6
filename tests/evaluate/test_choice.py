from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.evaluate.errors import EvaluateError
from hone.evaluate.runner import choose
from hone.evaluate.settings import EvaluateSettings, parse_slice
from hone.tasks.errors import TaskError
from tests.rollout.real import tasks

bounds = st.none() | st.integers(-12, 12)


@given(bounds, bounds, st.none() | st.integers(-3, 3).filter(bool))
def test_slice_follows_python(start: int | None, stop: int | None, step: int | None):
    shown = ["" if bound is None else str(bound) for bound in (start, stop, step)]
    numbers = list(range(8))
    assert numbers[parse_slice(":".join(shown))] == numbers[start:stop:step]
    assert numbers[parse_slice(":".join(shown[:2]))] == numbers[start:stop]


@pytest.mark.parametrize("text", ["5", "a:b", "0-5", "0:5:0", "1:2:3:4", "0.5:1", "0:5,7"])
def test_invalid_slice_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a slice such as 0:5"):
        EvaluateSettings(slice=text)


def test_slice_applies_after_ids_and_keeps_order(tmp_path: Path):
    every = tasks(6)
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(f"{task.id}  # noted" for task in reversed(every[1:5])))
    assert choose(every, EvaluateSettings()) == list(every)
    assert choose(every, EvaluateSettings(ids_file=ids)) == list(every[1:5])
    assert choose(every, EvaluateSettings(ids_file=ids, slice=":2")) == list(every[1:3])
    assert choose(every, EvaluateSettings(slice="-2:")) == list(every[4:])


def test_empty_choice_is_an_error(tmp_path: Path):
    ids = tmp_path / "ids.txt"
    ids.write_text("train-000\n")
    with pytest.raises(TaskError, match=r"train-000 \(did you mean train-000\d\?\)"):
        choose(tasks(3), EvaluateSettings(ids_file=ids))
    with pytest.raises(EvaluateError, match="the slice 7: holds none of the 3 tasks"):
        choose(tasks(3), EvaluateSettings(slice="7:"))
    with pytest.raises(EvaluateError, match="the set test holds no task"):
        choose((), EvaluateSettings())


def test_temperatures_are_non_negative_and_unique():
    with pytest.raises(ValueError, match="listed twice"):
        EvaluateSettings(temperatures=(0.5, 0.7, 0.5))
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 0"):
            EvaluateSettings(temperatures=(wrong,))


def test_cost_is_tokens_times_their_prices():
    priced = EvaluateSettings(price_per_million_prompt=0.5, price_per_million_sampled=2.0)
    assert priced.cost(1_000_000, 500_000) == pytest.approx(1.5)
    assert EvaluateSettings().cost(10**9, 10**9) == 0
