"""The sizes of a model that decide its memory and its floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.fields import ConfigError
from hone.policy.errors import PolicyError
from hone.policy.hub import config_folder
from hone.policy.model import read_config
from hone.policy.settings import ModelSettings, TinyModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder-only transformer, dense or with experts."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # width of the feed-forward layers, or of one expert
    experts: int = 0  # per layer; 0: a dense model
    experts_per_token: int = 0
    tied: bool = False  # the head is the embedding

    @property
    def attention_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token; that of its values is the same."""
        return self.kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding and, unless they are one, of the head."""
        return self.vocab_size * self.hidden * (1 if self.tied else 2)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return self._attention_parameters + self._feed_forward(self.experts) + 2 * self.hidden

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with: the head, attention, and its own experts."""
        layer = self._attention_parameters + self._feed_forward(self.experts_per_token)
        return self.vocab_size * self.hidden + self.layers * layer

    @property
    def _attention_parameters(self) -> int:
        return 2 * self.hidden * (self.attention_width + self.kv_width) + 2 * self.head_dim

    def _feed_forward(self, experts: int) -> int:
        matrices = 3 * self.hidden * self.inner
        return experts * matrices + self.experts * self.hidden if self.experts else matrices

    def kv_bytes(self, element: int) -> int:
        """Return the bytes of the keys and values of one token, with `element` bytes for each number."""
        return 2 * self.layers * self.kv_width * element


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
    "Qwen/Qwen3-0.6B": _dense(1024, 28, 16, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _dense(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _dense(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _dense(4096, 36, 32, 12288),
    "Qwen/Qwen3-14B": _dense(5120, 40, 40, 17408),
    "Qwen/Qwen3-32B": _dense(5120, 64, 64, 25600),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": {
        **_dense(2048, 48, 32, 6144),
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
}
"""The published `config.json` of models in recipes, for a plan before the download."""


def tiny_shape(tiny: TinyModelSettings) -> Shape:
    """Return the shape of the model of `hone.policy.tiny`."""
    return Shape(
        vocab_size=tiny.vocab_size,
        hidden=tiny.hidden_size,
        layers=tiny.layers,
        heads=tiny.heads,
        kv_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        inner=tiny.intermediate_size,
        tied=True,
    )


def known_shape(name: str) -> Shape | None:
    """Return the shape of a model on the hub; None if `KNOWN` does not list it."""
    return shape_of(KNOWN[name]) if name in KNOWN else None


def model_shape(model: ModelSettings) -> Shape:
    """Return the shape of a model by its folder or its name on the hub. Raises ConfigError."""
    try:
        folder = config_folder(model)
    except PolicyError as error:
        raise ConfigError(f"model.path: {error}") from None
    return folder_shape(folder)


def folder_shape(folder: Path) -> Shape:
    """Return the shape of a Hugging Face model folder. Raises ConfigError if it is none."""
    try:
        return shape_of(read_config(folder))
    except PolicyError as error:
        raise ConfigError(f"model.path: {error}") from None
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"model.path: {folder / 'config.json'} does not describe a model ({error!r})"
        ) from None


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Return the shape of a Qwen3 model, dense or with experts; an estimate for other architectures."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    experts = config.get("num_experts") or 0
    return Shape(
        vocab_size=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or hidden // heads,
        inner=config["moe_intermediate_size"] if experts else config["intermediate_size"],
        experts=experts,
        experts_per_token=config["num_experts_per_tok"] if experts else 0,
        tied=config.get("tie_word_embeddings", False),
    )
