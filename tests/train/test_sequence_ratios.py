"""Ratios and weights of whole rollouts, however the rows are divided into passes, workers and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.train.algorithms.gspo import GspoSettings
from hone.train.corrections import MaskSettings, TruncateSettings
from hone.train.learner import Learner
from hone.train.loss import policy_objective
from hone.train.settings import BatchSettings, LossSettings, OptimizerSettings, TrainSettings
from hone.train.trainer import Trainer, rl_trainer
from hone.types import Sample
from tests.train.examples import (
    model_of,
    noisy,
    step_with_gradients,
    tiny_model,
    trainer_of,
    with_logprobs,
)
from tests.train.ranks.cases import make_spec
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model

LOSS = LossSettings(clip_low=0.003, clip_high=0.004)
CORRECTIONS = TruncateSettings(level="sequence", high=1.5)
OPTIMIZER = OptimizerSettings(lr=1e-3, max_grad_norm=1e9)


def branched(count: int = 9) -> list[Sample]:
    """Rollouts of three branches each, all with the rollout's advantage, from somewhat other weights."""
    samples = multi_turn_samples(count)
    owners = [samples[i - i % 3] for i in range(count)]
    joined = [
        replace(s, rollout_id=o.rollout_id, advantage=s.weight * o.advantage.sum() / o.weight.sum())
        for s, o in zip(samples, owners, strict=True)
    ]
    return noisy(with_logprobs(joined, tiny_model()), 0.2)


def test_loss_is_that_of_the_gspo_paper() -> None:
    samples = branched()
    trainer = trainer_of(tiny_model(), loss=LOSS, algorithm=GspoSettings())
    now = with_logprobs(samples, model_of(trainer))
    terms: dict[str, list[float]] = {}
    signs: dict[str, float] = {}
    for sample, own in zip(samples, now, strict=True):
        logs = (own.logprobs - sample.logprobs)[sample.weight > 0]
        terms.setdefault(sample.rollout_id, []).extend(logs.tolist())
        signs[sample.rollout_id] = float(sample.advantage[sample.weight > 0][0])
    ratios = {name: np.exp(np.mean(logs)) for name, logs in terms.items()}
    values = [
        min(ratio * signs[name], np.clip(ratio, 0.997, 1.004) * signs[name]) for name, ratio in ratios.items()
    ]
    assert trainer.step(samples)["loss"] == pytest.approx(-np.mean(values), abs=1e-5)
    assert any(not 0.997 < ratio < 1.004 for ratio in ratios.values())


@pytest.mark.parametrize("recomputed", [False, True])
def test_sequence_ratios_and_weights_do_not_depend_on_the_passes(recomputed: bool) -> None:
    samples = branched()
    loss = LOSS.model_copy(update={"old_logprobs": "recomputed" if recomputed else "engine"})
    seen = [
        step_with_gradients(
            trainer_of(
                tiny_model(),
                loss=loss,
                algorithm=GspoSettings(),
                corrections=CORRECTIONS if recomputed else None,
                batch=BatchSettings(
                    micro_batch_tokens=budget, logit_tokens=chunk, workers=workers, mini_batches=2
                ),
            ),
            samples,
        )
        for budget, chunk, workers in ((1, 64, 1), (100, 7, 1), (100_000, 4096, 1), (60, 64, 2))
    ]
    (first, gradients), *others = seen
    assert first["clip_fraction"] > 0 or recomputed
    for metrics, other in others:
        assert metrics["loss"] == pytest.approx(first["loss"], abs=2e-6)
        for one, two in zip(gradients, other, strict=True):
            for mine, theirs in zip(one, two, strict=True):
                assert float((mine - theirs).abs().max()) <= 2e-5 * max(1.0, float(mine.abs().max()))


class Counted:
    """Counts the passes without a gradient of a trainer."""

    def __init__(self, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        own = trainer.learner.logprobs

        def logprobs(rows: Sequence[Any], *rest: Any) -> Any:
            self.rows.append(len(rows))
            return own(rows, *rest)

        monkeypatch.setattr(trainer.learner, "logprobs", logprobs)


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, []),
        ({"loss": LossSettings(old_logprobs="recomputed")}, []),
        ({"algorithm": GspoSettings()}, [6]),  # the rollouts with an advantage only
        (
            {"algorithm": GspoSettings(), "loss": LossSettings(old_logprobs="recomputed")},
            [],
        ),  # the ratio is 1
        ({"corrections": CORRECTIONS, "loss": LossSettings(old_logprobs="recomputed")}, [9]),
    ],
)
def test_extra_pass_is_made_only_where_it_is_needed(
    options: dict[str, Any], passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = branched()
    samples = [replace(s, advantage=s.advantage * (s.rollout_id != first.rollout_id)) for s in [first, *rest]]
    trainer = trainer_of(tiny_model(), **options)
    counted = Counted(trainer, monkeypatch)
    trainer.step(samples)
    assert counted.rows == passes


def test_masked_tokens_leave_no_gradient_but_count_in_the_mean() -> None:
    samples = branched(3)
    off = [replace(s, logprobs=(s.logprobs - 9 * s.weight).astype(np.float32)) for s in samples]
    trainer = trainer_of(
        tiny_model(), loss=LossSettings(old_logprobs="recomputed"), corrections=MaskSettings()
    )
    metrics = trainer.step(off)
    assert (metrics["corrections/masked"], metrics["skipped/no_signal"], metrics["loss"]) == (1.0, 1, 0.0)


def test_far_off_engine_leaves_the_gradient_finite() -> None:
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    far = [replace(s, logprobs=(s.logprobs - 300 * s.weight).astype(np.float32)) for s in samples]
    for options in ({}, {"algorithm": GspoSettings()}):
        metrics = trainer_of(tiny_model(), **options).step(far)
        assert np.isfinite([metrics["loss"], metrics["grad_norm"], metrics["mismatch/k3"]]).all()
        assert metrics["grad_norm"] == 0.0  # every ratio is above its bounds
        assert metrics["clip_fraction"] == 1.0


@pytest.mark.slow
@pytest.mark.full
def test_two_ranks_train_with_sequence_ratios_as_one_process_does(tmp_path: Path) -> None:
    from hone.train.ranks.learner import RanksLearner

    samples = branched()
    results: list[dict[str, float]] = []
    weights: list[np.ndarray[Any, Any]] = []
    settings = TrainSettings(
        algorithm=GspoSettings(),
        loss=LOSS.model_copy(update={"old_logprobs": "recomputed"}),
        corrections=CORRECTIONS,
        optimizer=OPTIMIZER,
        batch=BatchSettings(mini_batches=3, epochs=2),
    )
    objective = policy_objective(settings.loss, 1.0, settings.algorithm)

    def train(learner: Learner) -> None:
        trainer = rl_trainer(learner, objective, settings)
        results.append(trainer.step(samples))
        weights.append(np.concatenate(trainer.logprobs(samples)))

    tiny_model().save_pretrained(tmp_path / "tiny")
    spec = make_spec(tmp_path, architecture="tiny", objective=objective, optimizer=OPTIMIZER)
    ranks = RanksLearner(spec, logs=tmp_path / "logs")
    try:
        train(ranks)
    finally:
        ranks.close()
    train(trainer_of(tiny_model(), loss=settings.loss, algorithm=settings.algorithm).learner)
    for name in ("loss", "clip_fraction", "corrections/truncated", "corrections/effective_sample_size"):
        assert results[0][name] == pytest.approx(results[1][name], abs=1e-5), name
    assert results[0]["clip_fraction"] > 0
    assert np.abs(weights[0] - weights[1]).max() < 1e-3
