"""Settings of the policy: the model, its engine, how replies are drawn, the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from hone.settings import Settings


class ModelSettings(Settings):
    """Which model is trained."""

    path: Path
    """Folder of a Hugging Face model with its tokenizer (config.json, *.safetensors, tokenizer.json)."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights."""

    renderer: str = "auto"
    """Who turns messages into tokens: a renderer by name (such as `qwen3`), `default` (the tokenizer's own
    chat template) or `auto` (the renderer that gives exactly the tokens of the model's chat template)."""


class EngineSettings(Settings):
    """The engine that samples replies."""

    kind: Literal["local"] = "local"
    """`local`: in this process, on the trainer's own weights."""

    context_tokens: int = Field(default=2048, gt=0)
    """Prompt and reply together may not be longer than this; in tokens."""

    max_batch: int = Field(default=32, gt=0)
    """Requests decoded at the same time; further ones wait."""

    threads: int | None = Field(default=None, ge=1)
    """Threads of its tensor operations on a CPU; default: one per core. With fewer, sandboxes on the same
    machine get the other cores, which is quicker for a small model."""

    cached_sessions: int = Field(default=128, ge=0)
    """Idle conversations whose keys and values are kept; the least recently used is dropped first."""

    prefill_tokens: int = Field(default=8192, gt=0)
    """Prompt tokens, padding included, computed in one forward pass; bounds the memory of a prefill."""


class SamplingSettings(Settings):
    """How replies are drawn."""

    temperature: float = Field(default=1.0, ge=0)
    """Divides the logits; 0 takes the likeliest token."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens whose probabilities reach this sum; 1 is off."""

    top_k: int = Field(default=0, ge=0)
    """Sample from this many likeliest tokens; 0 is off."""

    max_tokens: int = Field(default=256, gt=0)
    """Longest reply, in tokens."""


class TinyModelSettings(Settings):
    """Shape of the small Qwen3 model that the quickstart trains from scratch."""

    vocab_size: int = Field(default=768, ge=320)
    """Most entries the tokenizer may have: special tokens, 256 bytes, the commonest pieces of the texts."""

    hidden_size: int = Field(default=192, gt=0)
    """Width of the residual stream."""

    layers: int = Field(default=3, gt=0)
    """Decoder layers."""

    heads: int = Field(default=6, gt=0)
    """Query heads."""

    kv_heads: int = Field(default=2, gt=0)
    """Key and value heads; must divide `heads`."""

    head_dim: int = Field(default=32, gt=0)
    """Width of one head."""

    intermediate_size: int = Field(default=512, gt=0)
    """Width of the feed-forward layers."""

    max_positions: int = Field(default=2048, gt=0)
    """Longest sequence, in tokens."""

    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary position embedding."""

    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""

    seed: int = 0
    """Seed of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyModelSettings:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        return self
