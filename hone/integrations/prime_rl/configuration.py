"""The configuration of prime-rl's trainer that trains what a recipe of Hone says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.config.remote_learners import prime_rl_problem
from hone.train.algorithms.surrogates import SURROGATES
from hone.train.errors import TrainError
from hone.train.loss import PolicyObjective
from hone.train.settings import TrainSettings

LOSS = "hone.integrations.prime_rl.loss.loss"


def trainer_config(
    settings: TrainSettings, objective: PolicyObjective, *, model: Path, output_dir: Path
) -> dict[str, Any]:
    """Return the trainer's configuration.

    Raises TrainError for a custom algorithm that prime-rl cannot train; settings refuse every other.
    """
    if problem := prime_rl_problem(settings):
        raise TrainError(problem)
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
