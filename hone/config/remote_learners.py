"""What learners in other programs cannot honour of the settings of a training."""

from __future__ import annotations

from collections.abc import Iterator

from hone.train.algorithms.custom import CustomSettings
from hone.train.algorithms.rule import LossRule, loss_rule
from hone.train.algorithms.surrogates import SURROGATES
from hone.train.settings import ALL_LINEAR, MemorySettings, OptimizerSettings, PassSettings, TrainSettings

TINKER_ALPHA = 32.0  # of the adapters of a Tinker service, which has no setting for it
PRIME_RL_EPS = 1e-8  # of the AdamW of prime-rl, which has no setting for it


def remote_learner_problem(settings: TrainSettings) -> str | None:
    """Return why the learner cannot train with these settings, and what to do; None: it can."""
    if settings.learner == "tinker":
        return tinker_problem(settings)
    # the module of a custom algorithm need not be here to read settings
    if settings.learner == "prime_rl" and not isinstance(settings.algorithm, CustomSettings):
        return prime_rl_problem(settings)
    return None


def tinker_problem(settings: TrainSettings) -> str | None:
    """Return why a service cannot train with these settings, and what to do; None: it can."""
    lora, memory = settings.lora, settings.memory
    if lora is None or lora.alpha != TINKER_ALPHA or lora.targets != (ALL_LINEAR,):
        return (
            f"a Tinker service trains adapters of all linear layers with alpha {TINKER_ALPHA:g}, and no "
            f'others: set lora to a rank with alpha = {TINKER_ALPHA:g} and targets = ["{ALL_LINEAR}"]'
        )
    if memory != MemorySettings() or settings.tree not in ("auto", "off"):
        return (
            "memory and tree have no effect at a Tinker service, which packs and computes rows as it likes: "
            "remove them"
        )
    if settings.optimizer.name != "adamw":
        return (
            f'a Tinker service has no optimizer "{settings.optimizer.name}": set train.optimizer.name to '
            '"adamw"'
        )
    defaults = PassSettings()
    for name in PassSettings.model_fields:
        if getattr(settings.batch, name) != getattr(defaults, name):
            return (
                f"train.batch.{name} has no effect at a Tinker service, which divides rows into passes "
                f"itself: set it to {getattr(defaults, name)}"
            )
    return None


def prime_rl_problem(settings: TrainSettings) -> str | None:
    """Return why prime-rl's trainer cannot train with these settings, and what to do; None: it can."""
    rule = loss_rule(settings.algorithm, settings.loss)
    problem = next((problem for wrong, problem in _prime_rl_problems(settings, rule) if wrong), None)
    return None if problem is None else f'train.learner = "prime_rl" {problem}'


def _prime_rl_problems(settings: TrainSettings, rule: LossRule) -> Iterator[tuple[bool, str]]:
    batch, loss = settings.batch, settings.loss
    yield (
        batch.mini_batches > 1 or batch.epochs > 1,
        "makes one optimiser step per batch: set train.batch.mini_batches and train.batch.epochs to 1",
    )
    yield settings.lora is not None, "trains all weights: remove train.lora, or use another learner"
    yield loss.kl_coef > 0, "has no reference model: set train.loss.kl_coef = 0"
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
    yield optimizer.eps != PRIME_RL_EPS, f"has train.optimizer.eps = {PRIME_RL_EPS:g}: remove the setting"
