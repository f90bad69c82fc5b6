from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.train.batches import plan, split_rollouts
from hone.train.loss import kl_estimate, policy_loss, token_scales
from hone.train.settings import LossSettings
from tests.train.examples import multi_turn_samples

CLIP = LossSettings(clip_low=0.2, clip_high=0.28)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: the gradient is that of -A log p
        (1.5, 1.0, -1.28, 0.0),  # gained enough: clipped above
        (0.5, -1.0, 0.8, 0.0),  # lost enough: clipped below
        (1.5, -1.0, 1.5, 1.5),  # went the wrong way: never clipped
        (0.5, 1.0, -0.5, -0.5),
        (1.27, 1.0, -1.27, -1.27),  # between the two bounds
    ],
)
def test_policy_loss_is_clipped_ppo_with_two_bounds(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    logprobs = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    value = policy_loss(logprobs, torch.tensor([-1.0]), torch.tensor([advantage]), CLIP)
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient)


def test_kl_estimators_approximate_the_kl_divergence() -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum().item()

    def expected(name: str) -> float:
        return (policy * kl_estimate(policy.log(), reference.log(), name)).sum().item()  # type: ignore[arg-type]

    assert expected("k1") == pytest.approx(exact)
    assert expected("k3") == pytest.approx(exact)
    assert expected("k2") == pytest.approx(exact, rel=0.05)
    assert bool((kl_estimate(policy.log(), reference.log(), "k3") >= 0).all())


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


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = plan(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * max(lengths[i] for i in group)
        assert padded <= budget or len(group) == 1


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
        {"clip_low": 1.5},
    ],
)
def test_conflicting_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LossSettings.model_validate(wrong)
