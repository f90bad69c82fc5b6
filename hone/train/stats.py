"""Metrics of a training step: sums over rows, averaged at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from hone.train.algorithms.rule import LossRule
from hone.train.batches import TrainRow
from hone.train.corrections import LARGEST_LOG, Float64
from hone.train.learner import PassReport
from hone.types import Float32


class StepStats:
    """Collects the metrics of one `Trainer.step`. `rule`: how the ratio is clipped; None without a ratio."""

    def __init__(self, rule: LossRule | None, version: int | None = None) -> None:
        """`version`: weight version in use, whose tokens show the mismatch with the engine; None: all do."""
        self._rule = rule
        self._version = version
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._max: dict[str, float] = {}
        self._mismatch: defaultdict[str, float] = defaultdict(float)
        self.flops = 0.0  # that the model needed
        self._loss = 0.0
        self._mini_batches = 0
        self.updates = 0  # optimiser steps that changed the weights
        self._skipped: Counter[str] = Counter()
        self._replayed: int | None = None  # tokens
        self._passes: Counter[str] = Counter()
        self._measured: dict[str, float] = {}  # by the learner

    def add_rows(self, rows: Sequence[TrainRow], report: PassReport) -> None:
        """Add the passes over `rows`, computed with the weights before the optimiser step."""
        self._passes.update(report.passes)
        self.flops += report.flops
        self._sums["branch_tokens"] += report.branch_tokens
        self._sums["unique_tokens"] += report.unique_tokens
        if report.replayed is not None:
            self._replayed = (self._replayed or 0) + report.replayed
        self._sums["trained_tokens"] += sum(len(row.trained) for row in rows)
        self._measured |= report.metrics
        if report.logprobs is None or report.entropies is None:
            return
        for row, logprobs, entropy in zip(rows, report.logprobs, report.entropies, strict=True):
            self._sums["entropy"] += float(entropy.sum())
            if self._rule is not None:
                self._add_ratio(row, logprobs, self._rule)

    def _add_ratio(self, row: TrainRow, logprobs: Float32, rule: LossRule) -> None:
        at = row.trained
        old = logprobs if row.old_logprobs is None else row.old_logprobs[at]
        advantages = row.sample.advantage[at]
        difference = logprobs - old
        ratio = np.exp(np.minimum(difference, LARGEST_LOG))
        clipped = rule.surrogate.is_clipped(ratio, advantages, rule.bounds)
        deviation = np.abs(ratio - 1)
        self._sums["ratio_mean_deviation"] += float(deviation.sum())
        self._sums["clip_fraction"] += float(clipped.sum())
        self._sums["approx_kl"] += float((ratio - 1 - difference).sum())  # k3 of KL(old || new)
        self._raise_max("ratio_max_deviation", float(deviation.max()))
        # before the first optimiser step, the weights are still the engine's
        if self.updates == 0 and not self._skipped["non_finite_gradient"]:
            gap = logprobs.astype(np.float64) - row.sample.logprobs[at]
            fresh = slice(None) if self._version is None else row.sample.version[at] == self._version
            self._add_mismatch(gap[fresh])

    def _add_mismatch(self, gap: Float64) -> None:
        """Add the trainer's minus the engine's log-probabilities of some tokens of the engine."""
        if not len(gap):
            return
        self._raise_max("logp_gap_max", float(np.abs(gap).max()))
        weights = np.exp(np.clip(gap, -LARGEST_LOG, LARGEST_LOG))
        self._mismatch["tokens"] += len(gap)
        self._mismatch["k1"] -= float(gap.sum())
        self._mismatch["k3"] += float((weights - 1 - gap).sum())
        self._mismatch["weights"] += float(weights.sum())
        self._mismatch["squares"] += float(np.square(weights).sum())

    def add_loss(self, loss: float) -> None:
        self._mini_batches += 1
        self._loss += loss

    def add_step(self, *, grad_norm: float, lr: float) -> None:
        self.updates += 1
        self._sums["grad_norm"] += grad_norm
        self._sums["lr"] += lr

    def skip(self, reason: str) -> None:
        self._skipped[reason] += 1

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return the metrics that `Trainer.step` documents, without those that have no value."""
        per_step = {"grad_norm", "lr"}
        counts = {"branch_tokens", "unique_tokens", "trained_tokens"}
        loss = self._loss / max(1, self._mini_batches)
        result: dict[str, float] = {"loss": loss, "optimizer_steps": self.updates, **self._max}
        for name, total in self._sums.items():
            divisor = self.updates if name in per_step else self._sums["trained_tokens"]
            result[name] = total if name in counts else total / max(1, divisor)
        if tokens := self._mismatch["tokens"]:
            squares = max(self._mismatch["squares"], 1e-300)
            result["mismatch/k1"] = self._mismatch["k1"] / tokens
            result["mismatch/k3"] = self._mismatch["k3"] / tokens
            result["mismatch/effective_sample_size"] = self._mismatch["weights"] ** 2 / squares / tokens
        for reason, number in self._skipped.items():
            result[f"skipped/{reason}"] = number
        result |= {f"passes/{kind}": number for kind, number in self._passes.items()}
        branch_tokens = self._sums["branch_tokens"]
        result["tree"] = 1 - self._sums["unique_tokens"] / branch_tokens if branch_tokens else 0.0
        if self._replayed is not None:
            result["routing/replayed"] = self._replayed / self._sums["unique_tokens"]
        result |= self._measured
        result["seconds"] = seconds
        result["tokens_per_s"] = branch_tokens / seconds
        return result

    def _raise_max(self, name: str, value: float) -> None:
        self._max[name] = max(self._max.get(name, 0.0), value)
