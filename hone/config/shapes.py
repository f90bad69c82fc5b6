"""The shape of a model, for estimates of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.errors import ConfigError
from hone.policy.errors import PolicyError
from hone.policy.model import read_config
from hone.policy.settings import TinyModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes that determine the memory of a model."""

    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int


def _dense(hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": inner,
        "tie_word_embeddings": tied,
    }


KNOWN: Mapping[str, dict[str, Any]] = {
    "Qwen/Qwen3-4B": _dense(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _dense(4096, 36, 32, 12288),
    "Qwen/Qwen3-14B": _dense(5120, 40, 40, 17408),
    "Qwen/Qwen3-32B": _dense(5120, 64, 64, 25600),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": {
        **_dense(2048, 48, 32, 6144),
        "num_key_value_heads": 4,
        "num_experts": 128,
        "moe_intermediate_size": 768,
    },
}
"""The published `config.json` of models in recipes, for a plan before the download."""


def tiny_shape(tiny: TinyModelSettings) -> Shape:
    """Return the shape of the model of `hone.policy.tiny`."""
    return _shape(
        {
            "vocab_size": tiny.vocab_size,
            "hidden_size": tiny.hidden_size,
            "num_hidden_layers": tiny.layers,
            "num_attention_heads": tiny.heads,
            "num_key_value_heads": tiny.kv_heads,
            "head_dim": tiny.head_dim,
            "intermediate_size": tiny.intermediate_size,
            "tie_word_embeddings": True,
        }
    )


def known_shape(name: str) -> Shape | None:
    """Return the shape of a model on the hub; None if `KNOWN` does not list it."""
    return _shape(KNOWN[name]) if name in KNOWN else None


def folder_shape(folder: Path) -> Shape:
    """Return the shape of a Hugging Face model folder. Raises ConfigError if it is none."""
    try:
        return _shape(read_config(folder))
    except PolicyError as error:
        raise ConfigError(f"model.path: {error}") from None
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"model.path: {folder / 'config.json'} does not describe a model ({error!r})"
        ) from None


def _shape(config: Mapping[str, Any]) -> Shape:
    """Return the shape of a Qwen3 model, dense or with experts; an estimate for other architectures."""
    vocab, hidden, layers = config["vocab_size"], config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or hidden // heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 2 * head_dim
    experts = config.get("num_experts")
    if experts:
        feed_forward = experts * (3 * hidden * config["moe_intermediate_size"] + hidden)
    else:
        feed_forward = 3 * hidden * config["intermediate_size"]
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return Shape(
        parameters=embeddings + layers * (attention + feed_forward + 2 * hidden) + hidden,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
    )
