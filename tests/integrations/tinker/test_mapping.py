"""Examples for a service against the sum that Hone's loss is, under each normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.integrations.tinker.mapping import (
    Example,
    Normalisation,
    losses,
    scored_example,
    trained_examples,
)
from hone.train.algorithms.cispo import CispoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.registry import AnyAlgorithmSettings
from hone.train.batches import TrainRow
from hone.train.loss import policy_objective
from hone.train.settings import LossSettings
from hone.types import Float32, Sample

LOSSES: list[tuple[AnyAlgorithmSettings, LossSettings]] = [
    (GrpoSettings(), LossSettings()),
    (GrpoSettings(), LossSettings(clip_low=0.1, clip_high=0.4, dual_clip=1.5, normalisation="trajectory")),
    (GrpoSettings(), LossSettings(kl_coef=0.3, normalisation="constant", constant_tokens=7)),
    (CispoSettings(), LossSettings(clip_high=0.5)),
]


@st.composite
def batches(draw: st.DrawFn) -> list[TrainRow]:
    rows: list[TrainRow] = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(2, 12))
        seed = draw(st.integers(0, 2**31))
        rng = np.random.default_rng(seed)
        weight = rng.integers(0, 2, length).astype(np.float32)
        weight[0], weight[draw(st.integers(1, length - 1))] = 0, 1
        sample = Sample(
            rollout_id=f"r{number}",
            group_id="g",
            tokens=rng.integers(0, 99, length).astype(np.int32),
            weight=weight,
            advantage=rng.normal(size=length).astype(np.float32),
            logprobs=-rng.random(length).astype(np.float32),
            version=np.zeros(length, np.int32),
        )
        old = sample.logprobs if draw(st.booleans()) or number else sample.logprobs - np.float32(0.5)
        rows.append(
            TrainRow(
                sample=sample,
                scale=rng.random(length).astype(np.float32),
                old_logprobs=old,
                reference=-rng.random(length).astype(np.float32),
            )
        )
    return rows


def current_logprobs(rows: Sequence[TrainRow]) -> list[Float32]:
    """Those of other weights than sampled the rows: with ratios inside and outside of every bound."""
    rng = np.random.default_rng(5)
    return [
        (row.sample.logprobs[row.trained] + rng.normal(0, 0.7, len(row.trained))).astype(np.float32)
        for row in rows
    ]


def service_gradients(examples: Sequence[Example], normalisation: Normalisation) -> list[Float32]:
    """What a service adds to the derivative by each log-probability, [T - 1] per example."""
    gradients: list[Float32] = []
    for example in examples:
        logprobs = torch.tensor(example.logprobs, requires_grad=True)
        loss = -(torch.exp(logprobs - torch.tensor(example.logprobs)) * torch.tensor(example.advantages))
        total = loss.sum() if normalisation is Normalisation.SUM else loss.mean() / len(examples)
        (gradient,) = torch.autograd.grad(total, logprobs)
        gradients.append(gradient.numpy())
    return gradients


@pytest.mark.parametrize("normalisation", list(Normalisation))
@pytest.mark.parametrize(("algorithm", "loss"), LOSSES, ids=["grpo", "dual_clip", "kl", "cispo"])
@given(rows=batches())
def test_gradient_at_a_service_is_that_of_the_loss(
    rows: list[TrainRow],
    algorithm: AnyAlgorithmSettings,
    loss: LossSettings,
    normalisation: Normalisation,
):
    objective = policy_objective(loss, 1.0, algorithm)
    current = current_logprobs(rows)
    _, weights = losses(objective, rows, current)
    found = service_gradients(trained_examples(rows, weights, current, normalisation), normalisation)
    for row, logprobs, gradient in zip(rows, current, found, strict=True):
        expected = np.zeros(row.length, np.float32)
        expected[row.trained] = own_gradient(row, logprobs, algorithm, loss)
        np.testing.assert_allclose(gradient, expected[1:], rtol=1e-5, atol=1e-7)


def own_gradient(
    row: TrainRow, logprobs: Float32, algorithm: AnyAlgorithmSettings, settings: LossSettings
) -> Float32:
    """d(scale x loss) / d(log-probability), [n], written out from the papers."""
    at = row.trained
    assert row.old_logprobs is not None
    assert row.reference is not None
    advantage, old = row.sample.advantage[at], row.old_logprobs[at]
    ratio = np.exp((logprobs - old).astype(np.float64))
    if isinstance(algorithm, CispoSettings):
        weight = np.minimum(ratio, 1 + (settings.clip_high or 4.0))
    else:
        low, high = 1 - (settings.clip_low or 0.2), 1 + (settings.clip_high or 0.2)
        kept = np.where(advantage > 0, ratio <= high, (ratio >= low) & (ratio <= settings.dual_clip))
        weight = ratio * kept
    gradient = -weight * advantage
    if settings.kl_coef:
        gradient += settings.kl_coef * (1 - np.exp(row.reference[at] - logprobs))
    return (row.scale[at] * gradient).astype(np.float32)


@given(rows=batches())
def test_examples_shift_tokens_and_train_no_other(rows: list[TrainRow]):
    objective = policy_objective(LossSettings(), 1.0)
    current = current_logprobs(rows)
    _, weights = losses(objective, rows, current)
    for row, logprobs, example in zip(
        rows, current, trained_examples(rows, weights, current, Normalisation.ROW_MEAN), strict=True
    ):
        tokens = row.sample.tokens[: row.length]
        assert example.inputs.tolist() == tokens[:-1].tolist()
        assert example.targets.tolist() == tokens[1:].tolist()
        untrained = np.setdiff1d(np.arange(1, row.length), row.trained) - 1
        assert not example.advantages[untrained].any()
        assert not example.logprobs[untrained].any()
        np.testing.assert_array_equal(example.logprobs[row.trained - 1], logprobs)


@given(rows=batches())
def test_loss_is_the_sum_of_scaled_token_losses(rows: list[TrainRow]):
    objective = policy_objective(LossSettings(), 1.0)
    current = current_logprobs(rows)
    total, _ = losses(objective, rows, current)
    expected = 0.0
    for row, logprobs in zip(rows, current, strict=True):
        assert row.old_logprobs is not None
        ratio = np.exp((logprobs - row.old_logprobs[row.trained]).astype(np.float64))
        advantage = row.sample.advantage[row.trained]
        surrogate = -np.minimum(
            np.minimum(ratio, 10) * advantage, np.clip(np.minimum(ratio, 10), 0.8, 1.2) * advantage
        )
        expected += float((surrogate * row.scale[row.trained]).sum())
    assert total == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_scored_example_trains_nothing():
    example = scored_example(np.array([3, 1, 2], np.int32))
    assert (example.inputs.tolist(), example.targets.tolist()) == ([3, 1], [1, 2])
    assert not example.advantages.any()
