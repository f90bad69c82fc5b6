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

    thinking: bool = True
    """Whether prompts let the model reason before it answers; false only for families whose prompts can tell
    it not to."""

    renderer: str = "auto"
    """Who turns messages into tokens: a renderer by name (such as `qwen3`), `default` (the tokenizer's own
    chat template) or `auto` (the renderer that gives exactly the tokens of the model's chat template)."""


class EngineSettings(Settings):
    """The engine that samples replies."""

    kind: Literal["local", "vllm", "sglang", "openai"] = "local"
    """`local`: in this process, on the trainer's own weights. `vllm` and `sglang`: servers, started by the
    run or found at `urls`. `openai`: any OpenAI-compatible endpoint; text without tokens, for evaluation."""

    context_tokens: int = Field(default=2048, gt=0)
    """Prompt and reply together may not be longer than this; in tokens."""

    max_batch: int = Field(default=32, gt=0)
    """Requests decoded at the same time, by each server that the run starts; further ones wait."""

    threads: int | None = Field(default=None, ge=1)
    """Threads of its tensor operations on a CPU; default: one per core. With fewer, sandboxes on the same
    machine get the other cores, which is quicker for a small model."""

    cached_sessions: int = Field(default=128, ge=0)
    """Of `local`: idle conversations whose keys and values are kept; the least recently used goes first."""

    prefill_tokens: int = Field(default=8192, gt=0)
    """Of `local`: prompt tokens, padding included, in one forward pass; bounds the memory of a prefill."""

    urls: tuple[str, ...] = ()
    """Where servers run already, such as `http://host:8000`; the endpoint of `openai`, with its `/v1`."""

    servers: int = Field(default=1, ge=1)
    """Servers of `vllm` or `sglang` that the run starts on this machine when `urls` names none."""

    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs over which each server that the run starts splits the model."""

    gpu_memory_fraction: float = Field(default=0.85, gt=0, le=1)
    """Share of a GPU's memory that a server which the run starts may take; a CPU has none."""

    python: Path | None = None
    """The Python interpreter that has vLLM or SGLang installed; default: the one that runs Hone."""

    model_name: str = ""
    """Of `openai`: what the endpoint calls the model."""

    api_key_env: str = ""
    """Name of the environment variable that holds the key of the servers at `urls`; default: they ask for
    none."""

    in_flight_updates: bool = False
    """Whether an update of the weights cuts the replies under way, which then go on under the new weights,
    each token with its version, instead of waiting for them to end."""

    weight_sync: Literal["disk", "nccl"] = "disk"
    """How new weights reach the servers: through a folder that all of them can read, or from GPU to GPU; a
    server that is replaced under `nccl` takes part again from the next update on."""

    ready_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds a server may take to start, or to load weights, and a request waits for one to be up."""

    request_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds one request to a server may take."""

    retries: int = Field(default=3, ge=0)
    """How often a request that fails is sent again, to another server where there is one."""

    @property
    def managed(self) -> bool:
        """Whether the run starts the servers itself."""
        return self.kind in ("vllm", "sglang") and not self.urls

    @model_validator(mode="after")
    def _only_what_has_an_effect(self) -> EngineSettings:
        refused = set(type(self).model_fields) - _effective(self)
        for name in sorted(refused):
            if getattr(self, name) != type(self).model_fields[name].default:
                who = (
                    self.kind if self.kind in ("local", "openai") or self.managed else f"{self.kind} at urls"
                )
                raise ValueError(
                    f"{name} has no effect on the engine {who}: remove it, or change kind or urls"
                )
        if self.kind == "openai" and (len(self.urls) != 1 or not self.model_name):
            raise ValueError("the engine openai needs one address in urls, and model_name")
        return self


_LOCAL = frozenset({"max_batch", "threads", "cached_sessions", "prefill_tokens"})
_REMOTE = frozenset({"request_timeout_s", "retries"})
_SERVERS = _REMOTE | {"in_flight_updates", "weight_sync", "ready_timeout_s"}
_MANAGED = frozenset({"max_batch", "threads", "servers", "tensor_parallel", "gpu_memory_fraction", "python"})


def _effective(settings: EngineSettings) -> frozenset[str]:
    """The settings that have an effect on an engine of this kind."""
    own = {
        "local": _LOCAL,
        "openai": _REMOTE | {"urls", "model_name", "api_key_env"},
        "vllm": _SERVERS | (_MANAGED if settings.managed else {"urls", "api_key_env"}),
        "sglang": _SERVERS | (_MANAGED if settings.managed else {"urls", "api_key_env"}),
    }
    return frozenset({"kind", "context_tokens"}) | own[settings.kind]


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
