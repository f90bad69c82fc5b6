"""Ratios of whole rollouts and the weights of corrections, computed before the learner sees the rows.

A rollout is all its trained tokens, in all its branches. What is computed here are constants of a mini-batch,
so they do not depend on how the learner divides rows into passes, chunks or ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hone.train.batches import TrainRow, indices_by_rollout
from hone.train.corrections import CorrectionSettings, Float64, effective_sample_size
from hone.types import Float32, Sample


def corrected(
    samples: Sequence[Sample], trainer: Sequence[Float32], settings: CorrectionSettings
) -> tuple[list[Sample], dict[str, float]]:
    """Return the samples with their advantages times the weights of the correction, and its metrics.

    Args:
        trainer: [T] per sample, the trainer's log-probabilities before the first optimiser step.

    A surrogate is linear in the size of the advantage, so the weights multiply the loss. Metrics:
    corrections/truncated and corrections/masked (shares of the trained tokens whose weight was replaced by a
    bound, or by 0), corrections/effective_sample_size (of the weights without bounds, at the level).
    """
    result = list(samples)
    before: list[Float64] = []
    after: list[Float64] = []
    for indices in indices_by_rollout(samples):
        trained = [np.flatnonzero(samples[i].weight) for i in indices]
        logs = [
            (trainer[i][at] - samples[i].logprobs[at]).astype(np.float64)
            for i, at in zip(indices, trained, strict=True)
        ]
        weights = settings.weights(np.concatenate(logs))
        factors = settings.bounded(weights)
        before.append(weights)
        after.append(factors)
        parts = np.split(factors, np.cumsum([len(at) for at in trained])[:-1])
        for i, at, part in zip(indices, trained, parts, strict=True):
            advantage = samples[i].advantage.copy()
            advantage[at] *= part.astype(np.float32)
            result[i] = replace(samples[i], advantage=advantage)
    if not before:
        return result, {}
    weights, factors = np.concatenate(before), np.concatenate(after)
    at_level = weights if settings.level == "token" else np.array([each[0] for each in before])
    masked = factors == 0
    return result, {
        "corrections/truncated": float(((factors != weights) & ~masked).mean()),
        "corrections/masked": float(masked.mean()),
        "corrections/effective_sample_size": effective_sample_size(at_level),
    }


def with_sequence_ratios(
    rows: Sequence[TrainRow], old: Sequence[Float32], current: Sequence[Float32]
) -> list[TrainRow]:
    """Return the rows with old log-probabilities that give each token the ratio of its rollout.

    Args:
        old, current: [T] per row, the log-probabilities of the old and of the present weights.

    The ratio of a rollout is the geometric mean of those of its tokens (GSPO, arXiv:2507.18071, equation 7).
    With old = current - log(ratio), a pass computes that ratio with the gradient of the token's own
    log-probability.
    """
    result = list(rows)
    for indices in indices_by_rollout([row.sample for row in rows]):
        logs = [(current[i] - old[i])[rows[i].trained] for i in indices]
        ratio = np.concatenate(logs).mean(dtype=np.float64)
        for i in indices:
            result[i] = replace(rows[i], old_logprobs=(current[i] - ratio).astype(np.float32))
    return result
