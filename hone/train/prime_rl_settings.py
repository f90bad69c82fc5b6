"""Settings of prime-rl's trainer, and what it cannot honour of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from hone.settings import Settings
from hone.train.algorithms.rule import LossRule
from hone.train.algorithms.surrogates import CLIPPED, TRUNCATED

if TYPE_CHECKING:
    from hone.train.settings import OptimizerSettings, TrainSettings

SURROGATES = {"clipped": CLIPPED, "truncated": TRUNCATED}  # that `hone.integrations.prime_rl.loss` knows
EPS = 1e-8  # of the AdamW of prime-rl, which has no setting for it


class PrimeRLSettings(Settings):
    """prime-rl's trainer, which is started by hand with the `prime_rl/trainer.toml` of the run directory."""

    data_ranks: int = Field(default=1, ge=1)
    """Number of data-parallel ranks of the trainer: its processes, divided by those that share a sequence."""

    seq_len: int = Field(default=32768, gt=0)
    """Tokens of a packed micro-batch; no branch may be longer."""

    timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit of one training step, and of the trainer's start, in seconds."""


def prime_rl_problem(settings: TrainSettings, rule: LossRule) -> str | None:
    """Return why prime-rl's trainer cannot train with these settings, and what to do; None: it can."""
    return next((problem for wrong, problem in _problems(settings, rule) if wrong), None)


def _problems(settings: TrainSettings, rule: LossRule) -> Iterator[tuple[bool, str]]:
    batch, loss = settings.batch, settings.loss
    yield (
        batch.mini_batches > 1 or batch.epochs > 1,
        "makes one optimiser step per batch: set train.batch.mini_batches and train.batch.epochs to 1",
    )
    yield settings.lora is not None, "trains all weights: remove train.lora, or use another learner"
    yield loss.kl_coef > 0, "has no reference model: set train.loss.kl_coef = 0"
    yield rule.critic is not None, "has no critic: choose an algorithm other than ppo"
    yield (
        rule.sequence_ratio,
        "computes ratios per token, and this algorithm needs those of whole rollouts: choose another one",
    )
    yield (
        loss.old_logprobs == "recomputed",
        'returns no log-probabilities before a step: set train.loss.old_logprobs = "engine" and no '
        "train.corrections",
    )
    yield (
        rule.surrogate not in SURROGATES.values(),
        "knows the clipped and the truncated surrogate only: choose another train.algorithm",
    )
    yield from _optimizer_problems(settings.optimizer)


def _optimizer_problems(optimizer: OptimizerSettings) -> Iterator[tuple[bool, str]]:
    yield (
        optimizer.name != "adamw",
        'shares the implementation of adamw only: set train.optimizer.name = "adamw"',
    )
    yield (
        optimizer.schedule != "constant" or optimizer.warmup_steps > 0,
        'has other schedules: set train.optimizer.schedule = "constant" and warmup_steps = 0',
    )
    yield (
        optimizer.weight_decay != 0,
        "would decay norms and biases as well: set train.optimizer.weight_decay = 0",
    )
    yield optimizer.eps != EPS, f"has train.optimizer.eps = {EPS:g}: remove the setting"
