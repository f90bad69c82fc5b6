"""The configuration of prime-rl's trainer that trains what a recipe of Hone says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.integrations.prime_rl.loss import SURROGATES
from hone.train.errors import TrainError
from hone.train.loss import PolicyObjective
from hone.train.settings import OptimizerSettings, TrainSettings

LOSS = "hone.integrations.prime_rl.loss.loss"


def trainer_config(
    settings: TrainSettings, objective: PolicyObjective, *, model: Path, output_dir: Path
) -> dict[str, Any]:
    """Return the trainer's configuration. Raises TrainError for settings that prime-rl cannot honour."""
    require_supported(settings, objective)
    optimizer, rule = settings.optimizer, objective.loss_rule
    name = next(name for name, surrogate in SURROGATES.items() if surrogate is rule.surrogate)
    high = None if math.isinf(rule.bounds.high) else rule.bounds.high
    return {
        "output_dir": str(output_dir),
        "max_steps": settings.steps,
        "model": {
            "name": str(model),
            "seq_len": settings.prime_rl.seq_len,
            "optimization_dtype": "float32",
            "reduce_dtype": "float32",
        },
        "loss": {
            "type": "custom",
            "import_path": LOSS,
            "kwargs": {
                "surrogate": name,
                "low": rule.bounds.low,
                "cap": rule.bounds.cap,
                **({} if high is None else {"high": high}),
            },
        },
        "optim": {
            "type": "adamw",
            "lr": optimizer.lr,
            "betas1": optimizer.beta1,
            "betas2": optimizer.beta2,
            "weight_decay": 0.0,
            "max_norm": optimizer.max_grad_norm,
        },
        "scheduler": {"type": "constant"},
        "ckpt": {"interval": settings.checkpoint.every, "keep_last": settings.checkpoint.keep + 1},
        "weight_broadcast": {"type": "filesystem"},
        "rollout_transport": {"type": "filesystem"},
        "monitors": {"file": {"path": "metrics.jsonl"}},
    }


def to_toml(values: Mapping[str, Any]) -> str:
    """Return nested tables of numbers and texts as TOML."""
    return "\n".join(_lines(values, ())) + "\n"


def _lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(path)}]"
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{name} = {json.dumps(value)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, name))


def require_supported(settings: TrainSettings, objective: PolicyObjective) -> None:
    """Raise TrainError for the first setting that prime-rl's trainer cannot honour."""
    for refused, remedy in _unsupported(settings, objective):
        if refused:
            raise TrainError(f'train.learner = "prime_rl" {remedy}')


def _unsupported(settings: TrainSettings, objective: PolicyObjective) -> Iterator[tuple[bool, str]]:
    batch, optimizer = settings.batch, settings.optimizer
    yield (
        batch.mini_batches > 1 or batch.epochs > 1,
        "makes one optimiser step per batch: set train.batch.mini_batches and train.batch.epochs to 1",
    )
    yield (
        settings.lora is not None,
        "trains all weights: remove train.lora, or use another learner",
    )
    yield (
        objective.uses_reference,
        "has no reference model: set train.loss.kl_coef = 0",
    )
    yield (
        objective.critic is not None,
        "has no critic: choose an algorithm other than ppo",
    )
    yield (
        objective.loss_rule.sequence_ratio,
        "computes ratios per token, and this algorithm needs those of whole rollouts: choose another one",
    )
    yield (
        objective.recomputes,
        'returns no log-probabilities before a step: set train.loss.old_logprobs = "engine" and no '
        "train.corrections",
    )
    yield (
        objective.loss_rule.surrogate not in SURROGATES.values(),
        "knows the clipped and the truncated surrogate only: choose another train.algorithm",
    )
    yield from _unsupported_optimizer(optimizer)


def _unsupported_optimizer(optimizer: OptimizerSettings) -> Iterator[tuple[bool, str]]:
    default = OptimizerSettings()
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
    yield (
        optimizer.eps != default.eps,
        f"has train.optimizer.eps = {default.eps:g}: remove the setting",
    )
