"""Generalised advantage estimation, beside sums that are written from the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.train.algorithms.contract import Critic
from hone.train.batches import TrainRow, micro_batches
from hone.train.gae import estimate, with_advantages
from hone.train.loss import value_loss
from hone.train.passes import CostModel
from hone.train.settings import TrainSettings
from tests.train.trajectories import multi_turn_samples

numbers = st.floats(-3, 3, width=32)
CRITIC = Critic(gamma=0.9, gae_lambda=0.7, value_coef=0.1, value_clip=0.2)


def published(rewards: list[float], values: list[float], gamma: float, gae_lambda: float) -> list[float]:
    """A(t) = sum over l of (gamma lambda)^l delta(t + l), with V = 0 after the end."""
    deltas = [
        r + gamma * (values[t + 1] if t + 1 < len(values) else 0.0) - values[t] for t, r in enumerate(rewards)
    ]
    return [
        sum((gamma * gae_lambda) ** (later - t) * deltas[later] for later in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30), st.floats(0.1, 1), st.floats(0, 1))
def test_advantages_are_the_discounted_sums_of_the_paper(
    steps: list[tuple[float, float]], gamma: float, gae_lambda: float
) -> None:
    rewards, values = (list(each) for each in zip(*steps, strict=True))
    found = estimate(np.array(rewards), np.array(values), gamma, gae_lambda)
    assert found == pytest.approx(published(rewards, values, gamma, gae_lambda), abs=1e-9)


def test_rewards_end_rollouts_and_branches_follow_each_other() -> None:
    first, second, other = multi_turn_samples(3)
    samples = [
        replace(s, rollout_id=name, advantage=(reward * s.weight).astype(np.float32))
        for s, name, reward in ((first, "a", 1.0), (second, "a", 1.0), (other, "b", -1.0))
    ]
    rng = np.random.default_rng(0)
    values = [(s.weight * rng.normal(size=len(s.tokens))).astype(np.float32) for s in samples]
    result, targets, metrics = with_advantages(samples, values, CRITIC)
    at = [np.flatnonzero(s.weight) for s in samples]
    joined = [*values[0][at[0]].tolist(), *values[1][at[1]].tolist()]
    raw = published([0.0] * (len(joined) - 1) + [1.0], joined, 0.9, 0.7)
    alone = values[2][at[2]].tolist()
    raw += published([0.0] * (len(alone) - 1) + [-1.0], alone, 0.9, 0.7)
    expected = (np.array(raw) - np.mean(raw)) / np.std(raw)
    found = np.concatenate([s.advantage[i] for s, i in zip(result, at, strict=True)])
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
    flat = np.array([*joined, *alone])
    aims = np.concatenate([t[i] for t, i in zip(targets, at, strict=True)])
    assert aims == pytest.approx((np.array(raw) + flat).tolist(), abs=1e-5)
    assert all(not s.advantage[s.weight == 0].any() for s in result)
    assert metrics["value/loss"] == pytest.approx(float(np.mean((aims - flat) ** 2)) / 2, rel=1e-4)
    explained = 1 - np.var(aims - flat) / np.var(aims)
    assert metrics["value/explained_variance"] == pytest.approx(float(explained), rel=1e-3)
    assert with_advantages([], [], CRITIC) == ([], [], {})


def test_perfect_values_leave_no_advantage() -> None:
    samples = [replace(s, advantage=s.weight) for s in multi_turn_samples(3)]
    critic = replace(CRITIC, gamma=1.0)
    result, _, metrics = with_advantages(samples, [s.weight for s in samples], critic)
    assert not any(s.advantage.any() for s in result)
    assert metrics == {"value/loss": 0.0, "value/explained_variance": 0.0}


def test_critic_on_ranks_is_refused() -> None:
    ranks = {"learner": "ranks", "ranks": 2, "algorithm": {"name": "ppo"}}
    with pytest.raises(ValueError, match='only the learner "in_process" has a critic'):
        TrainSettings.model_validate(ranks)
    TrainSettings.model_validate({**ranks, "algorithm": {"name": "grpo"}})


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20))
def test_loss_of_the_values_is_the_larger_of_plain_and_clipped_errors(
    tokens: list[tuple[float, float, float]],
) -> None:
    now, old, returns = (np.array(each, np.float32) for each in zip(*tokens, strict=True))
    (sample,) = multi_turn_samples(1)
    count = len(tokens)
    weight = np.append(0, np.ones(count)).astype(np.float32)
    row = TrainRow(
        sample=replace(
            sample,
            tokens=np.zeros(count + 1, np.int32),
            weight=weight,
            advantage=weight,
            logprobs=weight,
            version=np.zeros(count + 1, np.int32),
        ),
        scale=weight,
        old_logprobs=None,
        values=np.append(0, old).astype(np.float32),
        returns=np.append(0, returns).astype(np.float32),
    )
    cost = CostModel(hidden=8, layers=1, attention_width=8, layer_parameters=64)
    (batch,) = micro_batches([row], tree="off", budget_tokens=99, cost=cost, device=torch.device("cpu"))
    critic = replace(CRITIC, value_coef=0.5, value_clip=0.2)
    values = torch.from_numpy(now).requires_grad_()
    loss = value_loss(values, batch, critic)
    clipped = old + np.clip(now - old, -0.2, 0.2)
    expected = 0.25 * np.maximum((now - returns) ** 2, (clipped - returns) ** 2)
    assert loss.detach().numpy() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6)
