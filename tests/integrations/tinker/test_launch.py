"""A run's settings open the learner and the engine of a service, and connect them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import WhitespaceSplit

from hone.config import RunSettings
from hone.integrations.tinker.learner import TinkerLearner
from hone.launch.policy import load_policy, open_engine
from hone.launch.train import open_trainer
from hone.launch.weights import publisher
from hone.policy.engine import Sampling
from tests.integrations.tinker import fake_sdk
from tests.integrations.tinker.fake_sdk import Server
from tests.integrations.tinker.test_learner import SAMPLES
from tests.train.examples import tiny_model, tokenizer

pytestmark = pytest.mark.model


def test_run_trains_and_samples_at_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tinker", fake_sdk)
    monkeypatch.setattr(fake_sdk.ServiceClient, "server", Server(tiny_model()), raising=False)
    tiny_model().save_pretrained(tmp_path / "model")
    chat = tokenizer()
    chat.backend_tokenizer.pre_tokenizer = WhitespaceSplit()  # so that a text is several tokens
    chat.chat_template = "{% for message in messages %}w2 {{ message['content'] }} w1{% endfor %}"
    chat.save_pretrained(tmp_path / "model")
    settings = RunSettings.model_validate(
        {
            "run_dir": tmp_path / "run",
            "model": {"path": tmp_path / "model", "renderer": "default"},
            "engine": {"kind": "tinker", "base_model": fake_sdk.NAME, "context_tokens": 64},
            "train": {
                "learner": "tinker",
                "lora": {"rank": 4},
                "optimizer": {"lr": 1e-2, "max_grad_norm": float("inf")},
            },
        }
    )
    policy = load_policy(settings)

    async def run() -> None:
        with open_trainer(policy, settings) as trainer:
            assert isinstance(trainer.learner, TinkerLearner)
            async with open_engine(policy, settings) as engine:
                await engine.health()
                publish = publisher(engine, policy, trainer.learner, settings)
                await publish(0)
                trainer.step(SAMPLES)
                await publish(1)
                reply = await engine.generate([3, 4], Sampling(max_tokens=2), session="s")
                assert reply.version.tolist() == [1, 1]

    asyncio.run(run())
