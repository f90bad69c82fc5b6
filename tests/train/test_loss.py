from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.train.algorithms.cispo import CispoSettings
from hone.train.algorithms.surrogates import Bounds, clipped, truncated
from hone.train.batches import TrainRow, micro_batches, split_rollouts
from hone.train.loss import kl_estimate, policy_objective, token_scales
from hone.train.passes import CostModel
from hone.train.settings import LossSettings
from hone.types import Sample
from tests.train.trajectories import multi_turn_samples

CLIP = Bounds(low=0.8, high=1.28, cap=3.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: the gradient is that of -A log p
        (1.5, 1.0, -1.28, 0.0),  # gained enough: clipped above
        (0.5, -1.0, 0.8, 0.0),  # lost enough: clipped below
        (1.5, -1.0, 1.5, 1.5),  # went the wrong way: not clipped
        (3.5, -1.0, 3.0, 0.0),  # by far: the dual clip
        (3.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.27, 1.0, -1.27, -1.27),  # between the two bounds
    ],
)
def test_policy_loss_is_clipped_ppo_with_two_bounds(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    logprobs = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    value = clipped(logprobs, torch.tensor([-1.0]), torch.tensor([advantage]), CLIP)
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient)


finite = st.floats(-200, 0, width=32)


@given(finite, finite, st.sampled_from([-2.0, -0.5, 0.5, 2.0]), st.sampled_from([clipped, truncated]))
def test_gradient_is_bounded_for_any_logprobs(
    old: float, new: float, advantage: float, surrogate: Callable[..., torch.Tensor]
) -> None:
    logprobs = torch.tensor([new], requires_grad=True)
    surrogate(logprobs, torch.tensor([old]), torch.tensor([advantage]), CLIP).sum().backward()
    assert logprobs.grad is not None
    assert abs(logprobs.grad.item()) <= CLIP.cap * abs(advantage) * 1.0001


def test_negative_advantage_of_a_stale_token_is_bounded_by_default() -> None:
    rule = policy_objective(LossSettings(), temperature=1.0).rule
    for advantage, bound in ((-1.0, 10.0), (1.0, 1.2)):
        logprobs = torch.tensor([-0.1], requires_grad=True)
        loss = rule.surrogate.loss(logprobs, torch.tensor([-8.0]), torch.tensor([advantage]), rule.bounds)
        loss.sum().backward()
        assert loss.item() == pytest.approx(-advantage * bound)
        assert logprobs.grad is not None
        assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize(("ratio", "weight"), [(0.1, 0.1), (1.0, 1.0), (4.0, 4.0), (7.0, 5.0), (70.0, 5.0)])
def test_truncated_ratio_is_only_a_weight(ratio: float, weight: float) -> None:
    bounds = policy_objective(LossSettings(), 1.0, CispoSettings()).rule.bounds
    for advantage in (2.0, -2.0):
        logprobs = torch.tensor([math.log(ratio) - 5.0], dtype=torch.float64, requires_grad=True)
        value = truncated(logprobs, torch.tensor([-5.0]), torch.tensor([advantage]), bounds)
        value.sum().backward()
        assert value.item() == pytest.approx(-weight * advantage * (math.log(ratio) - 5.0))
        assert logprobs.grad is not None
        assert logprobs.grad.item() == pytest.approx(-weight * advantage)


POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)


def test_kl_estimators_approximate_the_kl_divergence() -> None:
    exact = (POLICY * (POLICY / REFERENCE).log()).sum().item()

    def expected(name: str) -> float:
        return (POLICY * kl_estimate(POLICY.log(), REFERENCE.log(), name)).sum().item()  # type: ignore[arg-type]

    assert expected("k3") == pytest.approx(exact)
    assert expected("k2") == pytest.approx(exact, rel=0.05)
    assert bool((kl_estimate(POLICY.log(), REFERENCE.log(), "k3") >= 0).all())


def test_kl_estimators_have_the_gradients_that_are_documented() -> None:
    def gradient(loss: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        logits = POLICY.log().clone().requires_grad_()
        loss(torch.log_softmax(logits, -1)).backward()
        assert logits.grad is not None
        return logits.grad.tolist()

    forward = gradient(lambda logprobs: (logprobs.exp() * (logprobs - REFERENCE.log())).sum())
    backward = gradient(lambda logprobs: -(REFERENCE * logprobs).sum())
    k2 = gradient(lambda logprobs: (POLICY * kl_estimate(logprobs, REFERENCE.log(), "k2")).sum())
    k3 = gradient(lambda logprobs: (POLICY * kl_estimate(logprobs, REFERENCE.log(), "k3")).sum())
    k1 = gradient(lambda logprobs: (POLICY * (logprobs - REFERENCE.log())).sum())
    assert k2 == pytest.approx(forward)
    assert k3 == pytest.approx(backward)
    assert k1 == pytest.approx([0.0] * 3)


def test_kl_term_is_finite_far_from_the_reference() -> None:
    for gap in (9.0, 11.0, 200.0):
        logprobs = torch.tensor([-gap], requires_grad=True)
        kl = kl_estimate(logprobs, torch.tensor([0.0]), "k3")
        kl.sum().backward()
        assert logprobs.grad is not None
        assert logprobs.grad.item() == pytest.approx(1 - math.exp(min(gap, 10.0)), rel=1e-5)
        assert math.isfinite(kl.item())


def test_each_normalisation_scales_tokens_as_documented() -> None:
    samples = [replace(s, weight=s.weight * 0.5) for s in multi_turn_samples(7, group=3)]
    weights = [float(s.weight.sum()) for s in samples]

    def shares(name: str, constant: int | None = None) -> list[float]:
        scales = token_scales(samples, name, constant)  # type: ignore[arg-type]
        for scale, sample in zip(scales, samples, strict=True):
            assert ((scale > 0) == (sample.weight > 0)).all()
        return [float(scale.sum()) for scale in scales]

    assert shares("token") == pytest.approx([w / sum(weights) for w in weights])
    assert shares("trajectory") == pytest.approx([1 / 7] * 7)
    by_group = shares("group")
    assert [sum(by_group[:3]), sum(by_group[3:6]), by_group[6]] == pytest.approx([1 / 3] * 3)
    assert by_group[0] / by_group[1] == pytest.approx(weights[0] / weights[1])
    assert shares("constant", 50) == pytest.approx([w / 50 / 7 for w in weights])


def test_branches_of_a_rollout_count_as_one_trajectory() -> None:
    one, two, other = multi_turn_samples(3)
    scales = token_scales([one, replace(two, rollout_id=one.rollout_id), other], "trajectory")
    assert float(scales[0].sum() + scales[1].sum()) == pytest.approx(0.5)
    assert float(scales[2].sum()) == pytest.approx(0.5)


def test_rollout_without_trained_tokens_does_not_count() -> None:
    one, other = multi_turn_samples(2)
    empty = replace(other, weight=np.zeros_like(other.weight))
    for name in ("token", "trajectory", "group"):
        scales = token_scales([one, empty], name)  # type: ignore[arg-type]
        assert float(scales[0].sum()) == pytest.approx(1.0)
        assert not scales[1].any()


def test_objective_follows_its_settings() -> None:
    one, other = multi_turn_samples(2)
    settings = LossSettings(
        clip_low=0.1, clip_high=0.3, normalisation="constant", constant_tokens=10, old_logprobs="recomputed"
    )
    objective = policy_objective(settings, temperature=1.0)
    assert (objective.recomputes, objective.uses_reference) == (True, False)
    assert objective.rule.bounds == (0.9, 1.3, 10.0)
    weight = float(one.weight.sum())
    assert float(objective.scales([one, other])[0].sum()) == pytest.approx(weight / 10 / 2)
    assert not policy_objective(LossSettings(), temperature=1.0).recomputes


def test_sample_has_a_gradient_only_with_an_advantage_on_a_trained_token() -> None:
    (sample,) = multi_turn_samples(1)
    untrained = replace(sample, advantage=(sample.weight == 0).astype(np.float32))
    plain = policy_objective(LossSettings(), temperature=1.0)
    assert plain.has_gradient(sample)
    assert not plain.has_gradient(untrained)
    assert policy_objective(LossSettings(kl_coef=0.1), temperature=1.0).has_gradient(untrained)


def test_micro_batch_holds_each_trained_token_and_the_position_before_it() -> None:
    def row(tokens: list[int], weight: list[int], start: float) -> TrainRow:
        values = start + np.arange(len(tokens), dtype=np.float32)
        sample = Sample(
            rollout_id="r",
            group_id="g",
            tokens=np.array(tokens, np.int32),
            weight=np.array(weight, np.float32),
            advantage=values,
            logprobs=values + 100,
            version=np.zeros(len(tokens), np.int32),
        )
        return TrainRow(sample=sample, scale=values + 200, old_logprobs=values + 300, reference=values + 400)

    rows = [row([1, 2, 3], [0, 1, 0], 10), row([4, 5, 6, 7, 8], [0, 0, 1, 1, 0], 20)]
    cost = CostModel(hidden=8, layers=1, attention_width=8, layer_parameters=64)
    (batch,) = micro_batches(rows, tree="off", budget_tokens=8, cost=cost, device=torch.device("cpu"))
    assert batch.rows == [1, 0]
    assert batch.forest.tokens.tolist() == [1, 2, 4, 5, 6, 7]
    assert batch.targets.tolist() == [6, 7, 2]
    assert batch.predictors.tolist() == [3, 4, 0]
    assert batch.advantages.tolist() == [22, 23, 11]
    assert batch.engine_logprobs.tolist() == [122, 123, 111]
    assert batch.scale.tolist() == [222, 223, 211]
    assert batch.old_logprobs is not None
    assert batch.old_logprobs.tolist() == [322, 323, 311]
    assert batch.reference is not None
    assert batch.reference.tolist() == [422, 423, 411]
    part = batch.select(torch.tensor([2, 0]))
    assert part.targets.tolist() == [2, 6]
    assert part.predictors.tolist() == [0, 3]
    assert part.reference is not None
    assert part.reference.tolist() == [411, 422]
    by_row = [(i, values.tolist()) for i, values in batch.by_row(batch.advantages)]
    assert by_row == [(1, [22, 23]), (0, [11])]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 8), st.integers(0, 5))
def test_mini_batches_hold_every_sample_once_and_never_cut_a_rollout(
    owners: list[int], parts: int, seed: int
) -> None:
    example = multi_turn_samples(1)[0]
    samples = [replace(example, rollout_id=f"r{owner}") for owner in owners]
    split = split_rollouts(samples, parts, np.random.default_rng(seed))
    assert sorted(i for part in split for i in part) == list(range(len(samples)))
    rollouts = [{owners[i] for i in part} for part in split]
    assert sum(len(part) for part in rollouts) == len(set(owners))
    assert max(map(len, rollouts)) - min(map(len, rollouts)) <= 1
    assert len(split) == min(parts, len(set(owners)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"normalisation": "constant"},
        {"constant_tokens": 100},
        {"kl_estimator": "k2"},
        {"kl_estimator": "k1", "kl_coef": 0.1},
        {"clip_low": 1.5},
    ],
)
def test_conflicting_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LossSettings.model_validate(wrong)
