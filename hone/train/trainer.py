"""One training step: samples in, new weights and metrics out.

    samples -> mini-batches -> rows -> learner: gradient -> learner: optimiser -> metrics

Everything here is the same for every learner: mini-batches, normalisation, schedule and counters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.train.batches import TrainRow, split_rollouts
from hone.train.corrections import CorrectionSettings
from hone.train.errors import NonFinite, TrainError
from hone.train.gae import with_advantages
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner
from hone.train.loss import Objective, policy_objective
from hone.train.optimizer import learning_rate
from hone.train.ratios import corrected, with_sequence_ratios
from hone.train.settings import BatchSettings, OptimizerSettings, TrainSettings
from hone.train.stats import StepStats
from hone.train.token_records import TokenRecorder
from hone.types import Float32, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SKIPS_IN_A_ROW = 3  # low precision causes single bad gradients; three in a row are a defect


class Trainer:
    """Trains the weights of `learner`.

    A non-finite loss raises NonFinite before any weight changes. A non-finite gradient norm skips the
    optimiser step and is counted in `skipped/non_finite_gradient`; three in a row raise NonFinite. A
    mini-batch without a gradient (all advantages 0) leaves the weights unchanged and is counted in
    `skipped/no_signal`.
    """

    def __init__(
        self,
        learner: Learner,
        *,
        objective: Objective,
        optimizer: OptimizerSettings,
        batch: BatchSettings,
        total_optimizer_steps: int,
        corrections: CorrectionSettings | None = None,
    ) -> None:
        self.learner = learner
        self.optimizer_steps = 0
        self._objective = objective
        self._settings = optimizer
        self._batch = batch
        self._total = total_optimizer_steps
        self._corrections = corrections
        self._skips_in_a_row = 0
        self._calls = 0

    def step(
        self,
        samples: Sequence[Sample],
        *,
        version: int | None = None,
        recorder: TokenRecorder | None = None,
    ) -> dict[str, float]:
        """Train on `samples`, `epochs` passes of `mini_batches` optimiser steps each; return the metrics.

        `version`: weight version in use, whose tokens are fresh; None: all are. `recorder` is told of the
        passes over the tokens.

        Metrics: loss (mean over the mini-batches, always present); grad_norm, lr (means over the optimiser
        steps made); ratio_max_deviation, ratio_mean_deviation (of the ratio from 1), clip_fraction, approx_kl
        (k3, old to new), entropy (nats); of the fresh tokens of the first optimiser step, logp_gap_max (max
        |engine - trainer|), mismatch/k1 and mismatch/k3 (estimates of KL(engine, trainer)) and
        mismatch/effective_sample_size (of weights p(trainer) / p(engine), as a share of the tokens);
        corrections/<name> (see `hone.train.ratios.corrected`); value/<name> (of a critic, see
        `hone.train.gae.with_advantages`); branch_tokens, unique_tokens (computed; fewer where samples share
        prefixes), trained_tokens (of all forward passes, over all epochs); tree (share of
        branch tokens that shared prefixes saved); passes/<kind>; routing/replayed (share of unique_tokens
        whose experts were the engine's, of a mixture of experts with replay); optimizer_steps;
        skipped/<reason>; seconds, tokens_per_s (of branch tokens); peak_memory_gib (of one device); mfu
        (model FLOP/s utilisation, on known GPUs).

        Raises NonFinite, and TrainError, which names the rollout, for an invalid sample.
        """
        started = time.perf_counter()
        _require_valid(samples)
        stats = StepStats(self._objective.rule, version)
        rng = np.random.default_rng((self._batch.seed, self._calls))
        self._calls += 1
        rows, corrections = self._rows(samples)
        for _ in range(self._batch.epochs):
            for indices in split_rollouts(samples, self._batch.mini_batches, rng):
                self._optimizer_step([rows[i] for i in indices], stats, recorder)
        seconds = time.perf_counter() - started
        usage = self.learner.usage()
        metrics = stats.metrics(seconds) | corrections | {"peak_memory_gib": usage.peak_memory_gib}
        if usage.peak_flops is not None:
            metrics["mfu"] = stats.flops / seconds / usage.peak_flops
        return metrics

    def cancel(self) -> None:
        """Make a `step` in another thread raise StepCancelled after its current forward pass.

        The weights are then in an intermediate state: resume from a checkpoint.
        """
        self.learner.cancel()

    def logprobs(self, samples: Sequence[Sample]) -> list[Float32]:
        """Return [T] per sample: the current log-probability of each token with weight, 0 elsewhere."""
        rows = [_scored(sample) for sample in samples]
        return _spread(rows, self.learner.logprobs(rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, which with the learner's state continue the training bit for bit."""
        return {
            "optimizer_steps": self.optimizer_steps,
            "calls": self._calls,
            "skips_in_a_row": self._skips_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer_steps = state["optimizer_steps"]
        self._calls = state["calls"]
        self._skips_in_a_row = state["skips_in_a_row"]

    def restart(self) -> None:
        """After a RankError: begin again, with the start weights and new counters; blocks."""
        self.learner.restart()
        self.load_state_dict({"optimizer_steps": 0, "calls": 0, "skips_in_a_row": 0})

    def _rows(self, samples: Sequence[Sample]) -> tuple[list[TrainRow], dict[str, float]]:
        """Return the rows of a batch with their old and reference log-probabilities, and metrics of
        corrections and critic."""
        scored = [_scored(sample) for sample in samples]
        old: Sequence[Float32 | None] = [s.logprobs for s in samples]
        metrics: dict[str, float] = {}
        values: Sequence[Float32 | None] = [None] * len(samples)
        returns: Sequence[Float32 | None] = values
        if self._objective.critic is not None:
            values = _spread(scored, self.learner.values(scored))
            samples, returns, metrics = with_advantages(samples, values, self._objective.critic)
        if self._objective.recomputes:
            one_step = self._batch.epochs == 1 and self._batch.mini_batches == 1
            before: Sequence[Float32] = []
            if not one_step or self._corrections is not None:
                before = _spread(scored, self.learner.logprobs(scored))
            if self._corrections is not None:
                samples, shares = corrected(samples, before, self._corrections)
                metrics |= shares
            old = [None] * len(samples) if one_step else before
        rows = [
            TrainRow(sample=sample, scale=sample.weight, old_logprobs=o, values=v, returns=r)
            for sample, o, v, r in zip(samples, old, values, returns, strict=True)
        ]
        if not self._objective.uses_reference:
            return rows, metrics
        reference = _spread(scored, self.learner.logprobs(scored, "reference"))
        return [replace(row, reference=r) for row, r in zip(rows, reference, strict=True)], metrics

    def _with_sequence_ratios(self, rows: Sequence[TrainRow]) -> list[TrainRow]:
        """Return the rows with the ratios of rollouts; only rollouts with a gradient are computed.

        Rows without old log-probabilities have ratio 1.
        """
        active = {row.sample.rollout_id for row in rows if self._objective.has_gradient(row.sample)}
        chosen = {
            i: row.old_logprobs
            for i, row in enumerate(rows)
            if row.sample.rollout_id in active and row.old_logprobs is not None
        }
        scored = [_scored(rows[i].sample) for i in chosen]
        current = _spread(scored, self.learner.logprobs(scored)) if scored else []
        changed = with_sequence_ratios([rows[i] for i in chosen], list(chosen.values()), current)
        result = list(rows)
        for i, row in zip(chosen, changed, strict=True):
            result[i] = row
        return result

    def _optimizer_step(
        self, rows: Sequence[TrainRow], stats: StepStats, recorder: TokenRecorder | None
    ) -> None:
        lr = learning_rate(self.optimizer_steps, self._total, self._settings)
        self.optimizer_steps += 1
        if self._objective.rule is not None and self._objective.rule.sequence_ratio:
            rows = self._with_sequence_ratios(rows)
        scales = self._objective.scales([row.sample for row in rows])
        scaled = [replace(row, scale=scale) for row, scale in zip(rows, scales, strict=True)]
        active = [row for row in scaled if self._objective.has_gradient(row.sample)]
        if not active:
            stats.add_loss(0.0)
            stats.skip("no_signal")
            return
        report = self.learner.forward_backward(active)
        if recorder is not None:
            recorder.add(active, report, updates=stats.updates)
        stats.add_rows(active, report)
        stats.add_loss(report.loss)
        norm = self.learner.optim_step(lr)
        if math.isfinite(norm):
            self._skips_in_a_row = 0
            stats.add_step(grad_norm=norm, lr=lr)
        else:
            self._skips_in_a_row += 1
            stats.skip("non_finite_gradient")
        if self._skips_in_a_row == SKIPS_IN_A_ROW:
            raise NonFinite(
                f"the gradient was not finite in {SKIPS_IN_A_ROW} optimiser steps in a row: lower the "
                "learning rate, or train in float32"
            )


def _scored(sample: Sample) -> TrainRow:
    """Return a row to compute log-probabilities of."""
    return TrainRow(sample=sample, scale=sample.weight, old_logprobs=None)


def _spread(rows: Sequence[TrainRow], values: Sequence[Float32]) -> list[Float32]:
    """Return [T] per row with its [n] values at its trained tokens, 0 elsewhere."""
    spread = [np.zeros(len(row.sample.tokens), np.float32) for row in rows]
    for row, full, own in zip(rows, spread, values, strict=True):
        full[row.trained] = own
    return spread


def policy_trainer(
    model: PreTrainedModel,
    settings: TrainSettings,
    *,
    temperature: float,
    reference: PreTrainedModel | None = None,
) -> Trainer:
    """Return a trainer of `model` in this process for reinforcement learning.

    `temperature` is the engine's sampling temperature.
    """
    objective = policy_objective(settings.loss, temperature, settings.algorithm)
    learner = InProcessLearner(
        model,
        objective=objective,
        optimizer=settings.optimizer,
        passes=settings.batch,
        settings=settings,
        reference=reference,
    )
    return rl_trainer(learner, objective, settings)


def rl_trainer(learner: Learner, objective: Objective, settings: TrainSettings) -> Trainer:
    """Return a trainer of the weights of `learner` for reinforcement learning."""
    return Trainer(
        learner,
        objective=objective,
        optimizer=settings.optimizer,
        batch=settings.batch,
        total_optimizer_steps=settings.steps * settings.batch.epochs * settings.batch.mini_batches,
        corrections=settings.corrections if isinstance(settings.corrections, CorrectionSettings) else None,
    )


def _require_valid(samples: Sequence[Sample]) -> None:
    for sample in samples:
        lengths = {len(a) for a in (sample.tokens, sample.weight, sample.advantage, sample.logprobs)}
        if len(lengths) != 1:
            raise TrainError(f"rollout {sample.rollout_id}: the arrays of a sample differ in length")
        if sample.routing is not None and len(sample.routing) != len(sample.tokens):
            raise TrainError(
                f"rollout {sample.rollout_id}: its routing has {len(sample.routing)} tokens, its sample "
                f"{len(sample.tokens)}"
            )
        if not sample.weight.any() or sample.weight[0] != 0:
            raise TrainError(
                f"rollout {sample.rollout_id}: a sample needs weight on some token, and none on its first"
            )
        if not np.isfinite(sample.logprobs[sample.weight > 0]).all():
            raise TrainError(f"rollout {sample.rollout_id}: the engine's log-probabilities are not finite")
