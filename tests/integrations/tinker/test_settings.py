"""Settings that a service cannot honour are refused, each in one sentence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hone.config import ConfigError, RunSettings, dump, resolve
from hone.launch.sft import make_start_model
from hone.launch.train import run_training

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart-tinker.toml"
TRAIN: dict[str, Any] = {"learner": "tinker", "lora": {"rank": 4}}
RUN: dict[str, Any] = {
    "run_dir": "run",
    "model": {"path": "model"},
    "engine": {"kind": "tinker"},
    "train": TRAIN,
}


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as raised:
        RunSettings.model_validate(values)
    return str(raised.value)


def test_a_run_at_a_service_is_valid():
    assert RunSettings.model_validate(RUN).engine.kind == "tinker"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": None}, "set lora to a rank with alpha = 32"),
        ({"lora": {"rank": 4, "alpha": 16}}, "set lora to a rank with alpha = 32"),
        ({"lora": {"rank": 4, "targets": ["q_proj"]}}, "adapters of all linear layers"),
        ({"memory": {"activation_checkpointing": True}}, "memory and tree have no effect"),
        ({"tree": "mask"}, "memory and tree have no effect"),
        ({"ranks": 2}, 'no effect with learner = "tinker"'),
        ({"algorithm": {"name": "ppo"}}, 'only the learner "in_process" has a critic'),
    ],
)
def test_training_that_no_service_does_is_refused(changes: dict[str, Any], message: str):
    assert message in refused(RUN | {"train": TRAIN | changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": TRAIN | {"optimizer": {"name": "muon"}}}, 'no optimizer "muon"'),
        ({"train": TRAIN | {"batch": {"workers": 2}}}, "train.batch.workers has no effect"),
        ({"train": TRAIN | {"batch": {"logit_tokens": 9}}}, "train.batch.logit_tokens has no effect"),
        ({"engine": {"kind": "local"}}, 'engine.kind = "local" cannot sample from them'),
        ({"sampling": {"temperature": 0.8}}, "sampling.temperature is 0.8"),
        ({"rollout": {"max_staleness": 1}}, "rollout.max_staleness is 1"),
    ],
)
def test_run_that_no_service_does_is_refused(changes: dict[str, Any], message: str):
    assert message in refused(RUN | changes)


def test_engine_at_a_service_needs_the_learner_there():
    settings = RunSettings.model_validate(RUN | {"train": {}})
    with pytest.raises(ConfigError, match=r'set train.learner = "tinker"'):
        asyncio.run(run_training(settings, None, None, tasks=()))  # pyright: ignore[reportArgumentType]


def test_no_start_model_is_made_for_a_service():
    settings = resolve(RECIPE)
    with pytest.raises(ConfigError, match=r"set model.path to it"):
        asyncio.run(make_start_model(settings, None, None, ()))  # pyright: ignore[reportArgumentType]


def test_key_is_not_a_setting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    assert "tml-secret" not in dump(resolve(RECIPE))
