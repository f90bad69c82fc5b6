"""Generalised advantage estimation (arXiv:1506.02438) over the sampled tokens of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hone.train.algorithms.contract import Critic
from hone.train.algorithms.grpo import LEAST_DEVIATION
from hone.train.batches import indices_by_rollout
from hone.train.corrections import Float64
from hone.types import Float32, Sample


def estimate(rewards: Float64, values: Float64, gamma: float, gae_lambda: float) -> Float64:
    """Return the advantages of the steps of one episode, [n]; its last step ends it.

    delta = reward + gamma * value of the next step - value    (equation 9)
    A = delta + gamma * gae_lambda * A of the next step        (equation 16)
    """
    following = np.append(values[1:], 0.0)
    deltas = rewards + gamma * following - values
    advantages = np.zeros_like(values)
    later = 0.0
    for step in range(len(values) - 1, -1, -1):
        later = deltas[step] + gamma * gae_lambda * later
        advantages[step] = later
    return advantages


def with_advantages(
    samples: Sequence[Sample], values: Sequence[Float32], critic: Critic
) -> tuple[list[Sample], list[Float32], dict[str, float]]:
    """Return samples with normalised advantages, the targets of the values [T] each, and metrics.

    Args:
        samples: their advantages are the reward of the rollout.
        values: [T] per sample, the critic's values before the first optimiser step.

    The target of a value is its advantage plus itself. Metrics: value/loss (half the mean squared error),
    value/explained_variance (of the targets; 0 where all are equal).
    """
    result = list(samples)
    targets = [np.zeros(len(sample.tokens), np.float32) for sample in samples]
    places = [(i, np.flatnonzero(sample.weight)) for i, sample in enumerate(samples)]
    estimated: dict[int, Float64] = {}
    for indices in indices_by_rollout(samples):
        own = np.concatenate([values[i][places[i][1]] for i in indices]).astype(np.float64)
        last = indices[-1]
        rewards = np.zeros_like(own)
        rewards[-1] = samples[last].advantage[places[last][1][-1]]
        advantages = estimate(rewards, own, critic.gamma, critic.gae_lambda)
        ends = np.cumsum([len(places[i][1]) for i in indices])[:-1]
        for i, part, target in zip(
            indices, np.split(advantages, ends), np.split(advantages + own, ends), strict=True
        ):
            estimated[i] = part
            targets[i][places[i][1]] = target
    if not estimated:
        return result, targets, {}
    every = np.concatenate(list(estimated.values()))
    mean, deviation = float(every.mean()), max(float(every.std()), LEAST_DEVIATION)
    for i, at in places:
        advantage = np.zeros_like(samples[i].advantage)
        advantage[at] = (estimated[i] - mean) / deviation
        result[i] = replace(samples[i], advantage=advantage)
    errors = np.concatenate([(targets[i] - values[i])[at] for i, at in places])
    spread = float(np.concatenate([targets[i][at] for i, at in places]).var())
    return (
        result,
        targets,
        {
            "value/loss": float(np.square(errors).mean()) / 2,
            "value/explained_variance": 1 - float(errors.var()) / spread if spread > 0 else 0.0,
        },
    )
