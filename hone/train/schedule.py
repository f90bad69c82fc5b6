"""The learning rate as a pure function of the optimiser step."""

from __future__ import annotations

import math

from hone.train.settings import OptimizerSettings


def learning_rate(step: int, total_steps: int, settings: OptimizerSettings) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total_steps`.

    Rises linearly to `lr` at step `warmup_steps`, follows the schedule, and keeps the final value afterwards.
    Example: lr 1.0, 4 warm-up steps: 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, ...
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    left = 1 - min(done, 1.0)
    if settings.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return settings.lr * (settings.final_lr_fraction + (1 - settings.final_lr_fraction) * left)
