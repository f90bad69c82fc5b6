from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.in_process import InProcessLearner
from hone.train.ranks.learner import RanksLearner
from tests.train.ranks.cases import make_model, make_rows, make_spec, train_steps, worst_difference
from tests.train.ranks.gloo_ranks import Setup

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.xdist_group("ranks")]


@pytest.fixture
def learner(setup: Setup) -> RanksLearner:
    return setup.learner


def test_two_ranks_train_like_one_process(learner: RanksLearner) -> None:
    spec = learner.spec
    alone = InProcessLearner(
        make_model("qwen3"), objective=spec.objective, optimizer=spec.optimizer, passes=spec.passes
    )
    expected, expected_norms = train_steps(alone)
    reports, norms = train_steps(learner)
    assert worst_difference(reports, expected) <= 1e-5
    assert np.allclose(norms, expected_norms, rtol=1e-5, atol=0)
    rows = make_rows(3, seed=9)
    for mine, theirs in zip(learner.logprobs(rows), alone.logprobs(rows), strict=True):
        assert np.allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_nan_on_one_rank_is_an_error_on_all(learner: RanksLearner) -> None:
    rows = make_rows(3)
    broken = replace(rows[0], scale=np.full_like(rows[0].scale, np.nan))
    with pytest.raises(NonFinite, match="not finite"):
        learner.forward_backward([broken, *rows[1:]])
    learner.forward_backward(rows)
    learner.clear_gradients()


def test_fewer_passes_than_ranks_give_the_same_gradient(learner: RanksLearner) -> None:
    row = make_rows(1)
    first = learner.forward_backward(row)
    assert sum(first.passes.values()) == 1
    norm = learner.optim_step(0.0)
    learner.forward_backward(row)
    assert learner.optim_step(0.0) == pytest.approx(norm, rel=1e-6)


def test_cancelled_call_leaves_the_ranks_usable(learner: RanksLearner) -> None:
    """The call has 200 passes, so that it is under way when the cancellation comes."""
    rows = make_rows(200)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(learner.forward_backward, rows)
        while not call.done():
            learner.cancel()
        with pytest.raises(StepCancelled):
            call.result()
    assert len(learner.logprobs(rows[:2])) == 2


@pytest.mark.full
def test_nccl_from_ranks_on_cpus_is_refused(tmp_path: Path) -> None:
    learner = RanksLearner(make_spec(tmp_path), logs=tmp_path / "logs")
    with contextlib.closing(learner):
        with pytest.raises(TrainError, match=r'weight_sync = "nccl" needs .* on cpu: set engine.weight_sync'):
            learner.sender("vllm")
        assert len(learner.logprobs(make_rows(1))) == 1
