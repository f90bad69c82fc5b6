"""Metrics of a training step: sums over micro-batches, averaged at the end."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch import Tensor

from hone.train.batches import MicroBatch


class StepStats:
    """Collects the metrics of one `Trainer.step`. `clip`: bounds of the ratio; None without a ratio."""

    def __init__(self, clip: tuple[float, float] | None) -> None:
        self._clip = clip
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._max: dict[str, float] = {}
        self._loss = 0.0
        self._mini_batches = 0
        self._steps = 0
        self._skipped: Counter[str] = Counter()

    @torch.no_grad()
    def add_micro_batch(self, batch: MicroBatch, logprobs: Tensor, entropy: Tensor) -> None:
        """Add a micro-batch; `logprobs` and `entropy` are [N], of the weights before the optimiser step."""
        self._sums["tokens"] += batch.tokens
        self._sums["trained_tokens"] += len(logprobs)
        self._sums["entropy"] += float(entropy.sum())
        if self._clip is None:
            return
        old = logprobs if batch.old_logprobs is None else batch.old_logprobs
        difference = logprobs - old
        ratio = difference.exp()
        low, high = self._clip
        rising = batch.advantages > 0
        clipped = torch.where(rising, ratio > high, ratio < low) & (batch.advantages != 0)
        deviation = (ratio - 1).abs()
        self._sums["ratio_mean_deviation"] += float(deviation.sum())
        self._sums["clip_fraction"] += float(clipped.sum())
        self._sums["approx_kl"] += float((ratio - 1 - difference).sum())  # k3 of KL(old || new)
        self._raise_max("ratio_max_deviation", float(deviation.max()))
        # before the first optimiser step, the weights are still the engine's
        if self._steps == 0 and not self._skipped["non_finite_gradient"]:
            self._raise_max("logp_gap_max", float((logprobs - batch.engine_logprobs).abs().max()))

    def add_loss(self, loss: float) -> None:
        self._mini_batches += 1
        self._loss += loss

    def add_step(self, *, grad_norm: float, lr: float) -> None:
        self._steps += 1
        self._sums["grad_norm"] += grad_norm
        self._sums["lr"] += lr

    def skip(self, reason: str) -> None:
        self._skipped[reason] += 1

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return the metrics that `Trainer.step` documents, without those that have no value."""
        per_step = {"grad_norm", "lr"}
        counts = {"tokens", "trained_tokens"}
        loss = self._loss / max(1, self._mini_batches)
        result: dict[str, float] = {"loss": loss, "optimizer_steps": self._steps, **self._max}
        for name, total in self._sums.items():
            divisor = self._steps if name in per_step else self._sums["trained_tokens"]
            result[name] = total if name in counts else total / max(1, divisor)
        for reason, number in self._skipped.items():
            result[f"skipped/{reason}"] = number
        result["seconds"] = seconds
        result["tokens_per_s"] = self._sums["tokens"] / seconds
        return result

    def _raise_max(self, name: str, value: float) -> None:
        self._max[name] = max(self._max.get(name, 0.0), value)
