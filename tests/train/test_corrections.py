"""Weights between engine and trainer, held to NumPy versions that are written from the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.train.batches import TrainRow
from hone.train.corrections import AnyCorrectionSettings, MaskSettings, TruncateSettings
from hone.train.ratios import corrected, with_sequence_ratios
from hone.train.settings import TrainSettings
from hone.types import Float32, Sample
from tests.train.trajectories import multi_turn_samples

LEVELS = ("token", "sequence", "geometric")


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Sample], list[Float32]]:
    """Samples, some of them branches of one rollout, and the trainer's log-probabilities."""
    samples = multi_turn_samples(draw(st.integers(1, 6)), seed=draw(st.integers(0, 99)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    owners = [draw(st.integers(0, i)) for i in range(len(samples))]
    samples = [
        replace(
            s, rollout_id=f"r{o}", logprobs=(s.weight * rng.normal(-3, 1, len(s.tokens))).astype(np.float32)
        )
        for s, o in zip(samples, owners, strict=True)
    ]
    gap = draw(st.sampled_from([0.0, 0.2, 2.0, 300.0]))
    trainer = [
        (s.logprobs + s.weight * rng.normal(0, gap, len(s.tokens))).astype(np.float32) for s in samples
    ]
    return samples, trainer


def published(
    samples: list[Sample], trainer: list[Float32], kind: str, level: str, low: float, high: float
) -> list[list[float]]:
    """The factors of each sample's trained tokens, one rollout and one token at a time."""
    factors: list[list[float]] = []
    for sample, own in zip(samples, trainer, strict=True):
        gaps = [
            float(t) - float(e)
            for other, theirs in zip(samples, trainer, strict=True)
            if other.rollout_id == sample.rollout_id
            for t, e, w in zip(theirs, other.logprobs, other.weight, strict=True)
            if w > 0
        ]
        row: list[float] = []
        for t, e, w in zip(own, sample.logprobs, sample.weight, strict=True):
            if w == 0:
                continue
            log = {"token": float(t) - float(e), "sequence": sum(gaps), "geometric": sum(gaps) / len(gaps)}[
                level
            ]
            weight = np.exp(np.clip(log, -50, 50))
            if kind == "truncate":
                row.append(min(weight, high))
            else:
                row.append(weight if low <= weight <= high else 0.0)
        factors.append(row)
    return factors


@given(batches(), st.sampled_from(["truncate", "mask"]), st.sampled_from(LEVELS))
def test_advantages_are_weighted_as_the_papers_say(
    batch: tuple[list[Sample], list[Float32]], kind: str, level: str
) -> None:
    samples, trainer = batch
    bounds = {"high": 2.0} if kind == "truncate" else {"low": 0.5, "high": 5.0}
    settings = made(kind, level=level, **bounds)
    result, metrics = corrected(samples, trainer, settings)
    factors = published(samples, trainer, kind, level, bounds.get("low", 0.0), bounds["high"])
    for before, after, row in zip(samples, result, factors, strict=True):
        at = before.weight > 0
        assert after.advantage[at] == pytest.approx(
            (before.advantage[at] * row).tolist(), rel=1e-4, abs=1e-30
        )
        assert not after.advantage[~at].any()
        assert after.tokens is before.tokens
        assert np.isfinite(after.advantage).all()
    flat = np.concatenate(factors)
    assert metrics["corrections/masked"] == pytest.approx(float((flat == 0).mean()))
    assert 0 < metrics["corrections/effective_sample_size"] <= 1 + 1e-9
    assert 0 <= metrics["corrections/truncated"] <= 1


def made(kind: str, **options: Any) -> AnyCorrectionSettings:
    return TruncateSettings(**options) if kind == "truncate" else MaskSettings(**options)


def test_equal_probabilities_change_nothing() -> None:
    samples = multi_turn_samples(4)
    for kind in ("truncate", "mask"):
        for level in LEVELS:
            result, metrics = corrected(samples, [s.logprobs for s in samples], made(kind, level=level))
            assert all((a.advantage == b.advantage).all() for a, b in zip(result, samples, strict=True))
            assert metrics == {
                "corrections/truncated": 0.0,
                "corrections/masked": 0.0,
                "corrections/effective_sample_size": 1.0,
            }
    assert corrected([], [], TruncateSettings()) == ([], {})


def test_shares_and_effective_sample_size_are_those_of_the_tokens() -> None:
    (sample,) = multi_turn_samples(1)
    at = np.flatnonzero(sample.weight)[:4]
    weight = np.zeros_like(sample.weight)
    weight[at] = 1.0
    sample = replace(sample, weight=weight, advantage=weight)
    weights = np.array([0.1, 1.0, 3.0, 8.0])
    trainer = np.zeros_like(sample.logprobs)
    trainer[at] = np.log(weights)
    [truncated], metrics = corrected([sample], [trainer], TruncateSettings(high=2.0))
    assert truncated.advantage[at] == pytest.approx([0.1, 1.0, 2.0, 2.0])
    assert metrics == pytest.approx(
        {
            "corrections/truncated": 0.5,
            "corrections/masked": 0.0,
            "corrections/effective_sample_size": weights.sum() ** 2 / (weights**2).sum() / 4,
        }
    )
    [masked], metrics = corrected([sample], [trainer], MaskSettings())
    assert masked.advantage[at] == pytest.approx([0.0, 1.0, 3.0, 0.0])
    assert (metrics["corrections/masked"], metrics["corrections/truncated"]) == (0.5, 0.0)


@given(batches())
def test_each_token_gets_the_geometric_mean_of_its_rollouts_ratios(
    batch: tuple[list[Sample], list[Float32]],
) -> None:
    samples, current = batch
    rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=s.logprobs) for s in samples]
    result = with_sequence_ratios(rows, [s.logprobs for s in samples], current)
    logs = published_logs(samples, current)
    for sample, row, now in zip(samples, result, current, strict=True):
        assert row.old_logprobs is not None
        ratio = (now - row.old_logprobs)[sample.weight > 0]
        assert ratio == pytest.approx([logs[sample.rollout_id]] * len(ratio), abs=1e-3, rel=1e-4)


def published_logs(samples: list[Sample], current: list[Float32]) -> dict[str, float]:
    """Rollout -> logarithm of its ratio: (1 / |y|) sum of log(p(now) / p(old)) over its tokens."""
    sums: dict[str, list[float]] = {}
    for sample, now in zip(samples, current, strict=True):
        trained = np.flatnonzero(sample.weight)
        sums.setdefault(sample.rollout_id, []).extend((now - sample.logprobs)[trained].tolist())
    return {name: sum(values) / len(values) for name, values in sums.items()}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corrections": {"kind": "truncate"}}, 'set train.loss.old_logprobs = "recomputed"'),
        ({"corrections": {"kind": "mask", "low": 2, "high": 2}}, "set low below high"),
        ({"corrections": {"kind": "truncate", "low": 0.5}}, "Extra inputs"),
        ({"algorithm": {"name": "cispo"}, "loss": {"clip_low": 0.1}}, "clip_low has no effect"),
        ({"loss": {"clip_high": 10}}, "dual_clip is 10, below 1 \\+ clip_high"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainSettings.model_validate(settings)
