"""The metrics of a step, worked out by hand; the optimisers get every setting."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.train.batches import TrainRow
from hone.train.learner import PassReport
from hone.train.loss import policy_objective
from hone.train.optimizer import end_names, make_optimizers
from hone.train.settings import LossSettings, OptimizerSettings
from hone.train.stats import StepStats
from hone.types import Float32, Sample

CLIP = policy_objective(LossSettings(), temperature=1.0).rule  # 0.8 to 1.2; 10 for negative advantages


def rows_of(ratios: list[float], advantages: list[float], gaps: list[float], tokens: int) -> list[TrainRow]:
    """Return one row per ratio whose trainer's logprob is 0: ratio exp(0 - old), gap |0 - engine|."""
    return [
        TrainRow(
            sample=Sample(
                rollout_id="r",
                group_id="g",
                tokens=np.zeros(tokens, np.int32),
                weight=at_the_end(1.0, tokens),
                advantage=at_the_end(advantage, tokens),
                logprobs=at_the_end(gap, tokens),
                version=np.zeros(tokens, np.int32),
            ),
            scale=at_the_end(1.0, tokens),
            old_logprobs=at_the_end(-math.log(ratio), tokens),
        )
        for ratio, advantage, gap in zip(ratios, advantages, gaps, strict=True)
    ]


def at_the_end(value: float, tokens: int) -> Float32:
    return np.array([0.0] * (tokens - 1) + [value], np.float32)


def add(stats: StepStats, rows: list[TrainRow], entropy: float = 0.5) -> None:
    report = PassReport(
        loss=0.0,
        logprobs=[np.zeros(1, np.float32)] * len(rows),
        entropies=[np.full(1, entropy, np.float32)] * len(rows),
        branch_tokens=sum(len(row.sample.tokens) for row in rows),
        unique_tokens=2 * len(rows),
        passes={"off": 1},
    )
    stats.add_rows(rows, report)


def test_metrics_are_means_over_trained_tokens():
    stats = StepStats(CLIP)
    add(stats, rows_of([1.0, 1.5, 0.5], [1.0, 1.0, -1.0], [0.1, -0.3, 0.25], tokens=5))
    add(stats, rows_of([1.5], [0.0], [0.0], tokens=6), entropy=0.9)
    stats.add_loss(2.0)
    stats.add_loss(4.0)
    stats.add_step(grad_norm=1.0, lr=0.1)
    stats.add_step(grad_norm=3.0, lr=0.3)
    metrics = stats.metrics(seconds=8.0)
    approx_kl = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 1.5)) / 4
    weights = [math.exp(-gap) for gap in (0.1, -0.3, 0.25, 0.0)]
    k3 = sum(weight - 1 - math.log(weight) for weight in weights) / 4
    assert metrics == pytest.approx(
        {
            "loss": 3.0,
            "optimizer_steps": 2,
            "ratio_max_deviation": 0.5,
            "ratio_mean_deviation": 0.375,
            "clip_fraction": 0.5,  # a ratio without advantage cannot be clipped
            "approx_kl": approx_kl,
            "logp_gap_max": 0.3,
            "mismatch/k1": (0.1 - 0.3 + 0.25 + 0.0) / 4,
            "mismatch/k3": k3,
            "mismatch/effective_sample_size": sum(weights) ** 2 / sum(w * w for w in weights) / 4,
            "entropy": 0.6,
            "grad_norm": 2.0,
            "lr": 0.2,
            "branch_tokens": 21,
            "unique_tokens": 8,
            "tree": 1 - 8 / 21,
            "passes/off": 2,
            "trained_tokens": 4,
            "seconds": 8.0,
            "tokens_per_s": 21 / 8,
        }
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.3, 1.0, 1),
        (0.7, 1.0, 0),
        (1.3, -1.0, 0),
        (0.7, -1.0, 1),
        (1.3, 0.0, 0),
        (11.0, -1.0, 1),
        (0.7, 0.0, 0),
        (1.1, 1.0, 0),
    ],
)
def test_ratio_is_clipped_only_where_the_advantage_would_move_it_on(
    ratio: float, advantage: float, clipped: int
):
    stats = StepStats(CLIP)
    add(stats, rows_of([ratio], [advantage], [0.0], tokens=2))
    assert stats.metrics(1.0)["clip_fraction"] == clipped


def test_gap_to_the_engine_counts_until_the_first_optimiser_step():
    stats = StepStats(CLIP)
    add(stats, rows_of([1.0], [1.0], [0.1], tokens=2))
    stats.add_step(grad_norm=1.0, lr=0.1)
    add(stats, rows_of([1.0], [1.0], [5.0], tokens=2))
    assert stats.metrics(1.0)["logp_gap_max"] == pytest.approx(0.1)


def test_logprob_gap_covers_steps_up_to_a_skipped_gradient():
    stats = StepStats(CLIP)
    stats.skip("no_signal")
    add(stats, rows_of([1.0], [1.0], [0.1], tokens=2))
    stats.skip("non_finite_gradient")
    add(stats, rows_of([1.0], [1.0], [5.0], tokens=2))
    metrics = stats.metrics(1.0)
    assert metrics["logp_gap_max"] == pytest.approx(0.1)
    assert (metrics["skipped/no_signal"], metrics["skipped/non_finite_gradient"]) == (1, 1)


def test_objective_without_a_ratio_has_no_metrics_of_one():
    stats = StepStats(None)
    add(stats, rows_of([1.5], [1.0], [0.1], tokens=2))
    assert stats.metrics(1.0).keys() == {
        *("loss", "optimizer_steps", "branch_tokens", "unique_tokens", "trained_tokens", "entropy"),
        *("tree", "passes/off", "seconds", "tokens_per_s"),
    }


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimisers_get_every_setting(name: str):
    changed = {"momentum": 0.7} if name == "muon" else {}
    settings = OptimizerSettings.model_validate(
        {"name": name, "lr": 0.5, "weight_decay": 0.3, "beta1": 0.6, "beta2": 0.8, "eps": 1e-3, **changed}
    )

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embedding

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.head

    model = Model()
    ends = end_names(model)  # type: ignore[arg-type]
    *muon, adamw = make_optimizers(dict(model.named_parameters()), ends, settings)
    matrices, rest = adamw.param_groups
    assert (matrices["lr"], matrices["betas"], matrices["eps"]) == (0.5, (0.6, 0.8), 1e-3)
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert [p is model.hidden.bias for p in rest["params"]] == [True]
    if name == "muon":
        (group,) = muon[0].param_groups
        assert [p is model.hidden.weight for p in group["params"]] == [True]
        assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.5, 0.3, 0.7)
        assert len(matrices["params"]) == 2
    else:
        assert (muon, len(matrices["params"])) == ([], 3)


def test_tokens_of_older_weights_are_no_mismatch_with_the_engine():
    """Their log-probabilities differ because the weights do."""
    rows = rows_of([1.0, 1.0], [1.0, 1.0], [0.1, 3.0], tokens=5)
    old = replace(rows[1].sample, version=np.full(5, 6, np.int32))
    fresh = replace(rows[0].sample, version=np.full(5, 7, np.int32))
    mixed = [replace(rows[0], sample=fresh), replace(rows[1], sample=old)]
    stats, stale = StepStats(CLIP, version=7), StepStats(CLIP, version=8)
    add(stats, mixed)
    add(stale, mixed)
    assert stats.metrics(1.0)["logp_gap_max"] == pytest.approx(0.1)
    assert "logp_gap_max" not in stale.metrics(1.0)
