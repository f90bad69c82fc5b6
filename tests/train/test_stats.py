"""The metrics of a step, worked out by hand; the optimisers get every setting."""

from __future__ import annotations

import math

import pytest
import torch

from hone.train.batches import MicroBatch
from hone.train.optimizer import make_optimizers
from hone.train.settings import OptimizerSettings
from hone.train.stats import StepStats

CLIP = (0.8, 1.2)


def micro_batch(ratios: list[float], advantages: list[float], gaps: list[float], tokens: int) -> MicroBatch:
    """Return a batch whose trainer's logprobs are 0: ratio exp(0 - old), gap |0 - engine|."""
    count = len(ratios)
    return MicroBatch(
        rows=[0],
        input_ids=torch.zeros((1, tokens), dtype=torch.int64),
        positions=torch.arange(count),
        targets=torch.zeros(count, dtype=torch.int64),
        scale=torch.ones(count),
        advantages=torch.tensor(advantages),
        engine_logprobs=torch.tensor(gaps),
        old_logprobs=-torch.tensor(ratios).log(),
        reference=None,
        tokens=tokens,
    )


def add(stats: StepStats, batch: MicroBatch, entropy: float = 0.5) -> None:
    count = len(batch.positions)
    stats.add_micro_batch(batch, torch.zeros(count), torch.full((count,), entropy))


def test_metrics_are_means_over_trained_tokens():
    stats = StepStats(CLIP)
    add(stats, micro_batch([1.0, 1.5, 0.5], [1.0, 1.0, -1.0], [0.1, -0.3, 0.2], tokens=10))
    add(stats, micro_batch([1.5], [0.0], [0.0], tokens=6), entropy=0.9)
    stats.add_loss(2.0)
    stats.add_loss(4.0)
    stats.add_step(grad_norm=1.0, lr=0.1)
    stats.add_step(grad_norm=3.0, lr=0.3)
    metrics = stats.metrics(seconds=8.0)
    approx_kl = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 1.5)) / 4
    assert metrics == pytest.approx(
        {
            "loss": 3.0,
            "optimizer_steps": 2,
            "ratio_max_deviation": 0.5,
            "ratio_mean_deviation": 0.375,
            "clip_fraction": 0.5,  # a ratio without advantage cannot be clipped
            "approx_kl": approx_kl,
            "logp_gap_max": 0.3,
            "entropy": 0.6,
            "grad_norm": 2.0,
            "lr": 0.2,
            "tokens": 16,
            "trained_tokens": 4,
            "seconds": 8.0,
            "tokens_per_s": 2.0,
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
        (0.7, 0.0, 0),
        (1.1, 1.0, 0),
    ],
)
def test_ratio_is_clipped_only_where_the_advantage_would_move_it_on(
    ratio: float, advantage: float, clipped: int
):
    stats = StepStats(CLIP)
    add(stats, micro_batch([ratio], [advantage], [0.0], tokens=1))
    assert stats.metrics(1.0)["clip_fraction"] == clipped


def test_gap_to_the_engine_counts_until_the_first_optimiser_step():
    stats = StepStats(CLIP)
    add(stats, micro_batch([1.0], [1.0], [0.1], tokens=1))
    stats.add_step(grad_norm=1.0, lr=0.1)
    add(stats, micro_batch([1.0], [1.0], [5.0], tokens=1))
    assert stats.metrics(1.0)["logp_gap_max"] == pytest.approx(0.1)


def test_logprob_gap_covers_steps_up_to_a_skipped_gradient():
    stats = StepStats(CLIP)
    stats.skip("no_signal")
    add(stats, micro_batch([1.0], [1.0], [0.1], tokens=1))
    stats.skip("non_finite_gradient")
    add(stats, micro_batch([1.0], [1.0], [5.0], tokens=1))
    metrics = stats.metrics(1.0)
    assert metrics["logp_gap_max"] == pytest.approx(0.1)
    assert (metrics["skipped/no_signal"], metrics["skipped/non_finite_gradient"]) == (1, 1)


def test_objective_without_a_ratio_has_no_metrics_of_one():
    stats = StepStats(None)
    add(stats, micro_batch([1.5], [1.0], [0.1], tokens=2))
    assert stats.metrics(1.0).keys() == {
        *("loss", "optimizer_steps", "tokens", "trained_tokens", "entropy", "seconds", "tokens_per_s")
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
    *muon, adamw = make_optimizers(model, settings)  # type: ignore[arg-type]
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
