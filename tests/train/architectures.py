"""Tiny models of several architectures, and branches that share prefixes, for tests of exactness."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hone.train.forest import Branch

VOCABULARY = 40
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # wide, so that log-probabilities differ from uniform
}
ARCHITECTURES = ("qwen3", "llama", "qwen3_moe", "sliding")


def architecture(name: str, seed: int = 0) -> PreTrainedModel:
    """A float32 model with random weights; `sliding` has one layer with a window of 5 tokens."""
    torch.manual_seed(seed)
    match name:
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**_SHAPE)).eval()
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**_SHAPE)).eval()
        case "one_kv_head":
            return Qwen3ForCausalLM(Qwen3Config(**_SHAPE | {"num_key_value_heads": 1})).eval()
        case "qwen3_moe":
            experts: dict[str, Any] = {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
            }
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **experts)).eval()
        case _:
            layers: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 5}
            types: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"]}
            return Qwen3ForCausalLM(Qwen3Config(**_SHAPE, **layers, **types)).eval()


def tree_branches(seed: int = 0) -> list[Branch]:
    """Branches of 12 to 190 tokens: two prompts, forks inside them, a side call after each turn."""
    rng = np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    for prompt in (rng.integers(0, VOCABULARY, 40), rng.integers(0, VOCABULARY, 9)):
        trunk = prompt
        for _ in range(3):
            side = rng.integers(0, VOCABULARY, int(rng.integers(3, 9)))
            rows.append(np.concatenate([trunk[: -int(rng.integers(1, 4))], side]))
            trunk = np.concatenate([trunk, rng.integers(0, VOCABULARY, int(rng.integers(9, 50)))])
        rows.append(trunk)
    rows.append(rows[0].copy())  # a branch that another repeats has targets of its own
    return [
        Branch(r.astype(np.int32), np.unique(np.append(rng.integers(1, len(r), 6), len(r) - 1))) for r in rows
    ]
