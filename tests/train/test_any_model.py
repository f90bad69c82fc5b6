"""Causal models of transformers with a chat template: loaded from a folder, sampled, trained, published."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hone.outcomes import Outcome
from hone.policy.chat import Chat
from hone.policy.engine import Sampling
from hone.policy.local import LocalEngine
from hone.policy.model import load_model, load_tokenizer, make_renderer
from hone.policy.settings import LocalEngineSettings, TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.rollout.store import Store
from hone.train.loop import to_samples
from hone.train.settings import TrainSettings
from hone.types import Message, TokenTree
from tests.train.examples import trainer_of
from tests.train.trajectories import trajectory

TEXTS = ["Fix the bug in `total_price`: it returns the wrong value for an empty list.\n"] * 3
EXTRA: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},  # as in its current checkpoints
    "phi3": {"pad_token_id": 0},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


def make_folder(architecture: str, folder: Path) -> Path:
    """Write a tiny model of `architecture` with random weights, and a tokenizer with a chat template."""
    tokenizer = make_tokenizer(TEXTS, TinyModelSettings())
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **{"pad_token_id": tokenizer.pad_token_id, **EXTRA.get(architecture, {})},
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def talk(engine: LocalEngine, chat: Chat) -> TokenTree:
    messages: list[Message] = [{"role": "user", "content": "Fix `total_price`."}]
    for _ in range(2):
        reply = await chat.reply(messages)
        messages += [reply.to_message(), {"role": "user", "content": "Go on."}]
    await chat.close()
    return chat.tree


@pytest.mark.model
@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        pytest.param("qwen2", marks=pytest.mark.full),
        pytest.param("qwen3", marks=pytest.mark.full),
        "mistral",
        pytest.param("phi3", marks=pytest.mark.full),
        pytest.param("olmo2", marks=pytest.mark.full),
        pytest.param("smollm3", marks=pytest.mark.full),
        "qwen3_moe",
    ],
)
def test_model_is_sampled_trained_and_published_exactly(tmp_path: Path, architecture: str) -> None:
    folder = make_folder(architecture, tmp_path)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert model.config.model_type == architecture
    renderer = make_renderer(tokenizer, "default")

    async def sample() -> list[TokenTree]:
        engine = LocalEngine(model, LocalEngineSettings(context_tokens=200))
        try:
            chats = [
                Chat(engine, renderer, Sampling(max_tokens=12, seed=i), session=f"r{i}") for i in range(4)
            ]
            return list(await asyncio.gather(*(talk(engine, chat) for chat in chats)))
        finally:
            await engine.close()

    batch = [
        trajectory(f"r{i}", outcome=Outcome.RESOLVED if i % 2 else Outcome.UNRESOLVED, tree=tree)
        for i, tree in enumerate(asyncio.run(sample()))
    ]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    store = Store(tmp_path / "rollouts")
    batch = [store.load(store.save(made, group=0, index=i)) for i, made in enumerate(batch)]
    trainer = trainer_of(model)
    metrics = trainer.step(to_samples(batch, TrainSettings(), lambda _: False)[1])
    assert metrics["trained_tokens"] > 16
    assert metrics["logp_gap_max"] <= 1e-4
    assert metrics["grad_norm"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert metrics.get("routing/replayed", 0) == pytest.approx(0.95 if "moe" in architecture else 0, abs=0.05)
    trainer.learner.export(tmp_path / "published")
    published = dict(load_model(tmp_path / "published").named_parameters())
    assert all(torch.equal(published[name], parameter) for name, parameter in model.named_parameters())
