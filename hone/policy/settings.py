"""Settings of the policy: the model, its engine, how replies are drawn, the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hone.settings import Mark, Settings

Dtype = Literal["float32", "bfloat16"]


class ModelSettings(Settings):
    """Which model is trained."""

    path: Path
    """Folder of a Hugging Face model with its tokenizer (config.json, *.safetensors, tokenizer.json), or the
    name of a model on the hub, such as `Qwen/Qwen3-0.6B`, which is downloaded unless it is in the local
    cache."""

    revision: str | None = None
    """Branch, tag or commit of a model on the hub; default: its main branch. A training keeps the commit that
    it started from."""

    dtype: Dtype = "float32"
    """Precision of the weights."""

    thinking: bool = True
    """Whether prompts let the model reason before it answers; false only for families whose prompts can tell
    it not to."""

    renderer: str = "auto"
    """Who turns messages into tokens: a renderer by name (such as `qwen3`), `default` (the tokenizer's own
    chat template) or `auto` (the renderer that gives exactly the tokens of the model's chat template)."""


class EngineSettings(Settings):
    """The engine that samples replies: what every kind of engine has."""

    context_tokens: int = Field(default=2048, gt=0)
    """Longest prompt and reply together, in tokens."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """URLs of servers that run already; () when the run starts its engine itself."""
        return ()

    @property
    def managed(self) -> bool:
        """Whether the run starts server processes."""
        return False


class LocalEngineSettings(EngineSettings):
    kind: Literal["local"] = "local"
    """`local`: in this process, on the trainer's own weights. `vllm` and `sglang`: servers, started by the
    run or found at `urls`. `openai`: any OpenAI-compatible endpoint; text without tokens, for evaluation.
    `tinker`: a service of the Tinker API, for `train.learner = "tinker"` and for evaluation."""

    max_batch: Annotated[int, Mark.SAME_RESULTS] = Field(default=32, gt=0)
    """Maximum number of requests decoded at the same time, by each server that the run starts; more wait."""

    threads: Annotated[int | None, Mark.SAME_RESULTS] = Field(default=None, ge=1)
    """Threads of tensor operations on a CPU; default: one per core. Fewer leave cores to the sandboxes on the
    same machine, which is faster for a small model."""

    dtype: Dtype | None = None
    """Precision in which replies are sampled, with a copy of the weights in it, as engines of a cluster have;
    default: that of `model.dtype`."""

    cached_sessions: Annotated[int, Mark.SAME_RESULTS] = Field(default=128, ge=0)
    """Idle conversations whose keys and values stay cached; the least recently used is evicted first."""

    prefill_tokens: Annotated[int, Mark.SAME_RESULTS] = Field(default=8192, gt=0)
    """Prompt tokens, padding included, in one forward pass; bounds the memory of a prefill."""


class RemoteEngineSettings(EngineSettings):
    """An engine that is reached over HTTP."""

    urls: Annotated[tuple[str, ...], Mark.SAME_RESULTS] = ()
    """Addresses of servers that run already, such as `http://host:8000`; of `openai`, with its `/v1`."""

    api_key_env: Annotated[str, Mark.SAME_RESULTS] = ""
    """Name of the environment variable that holds the API key of the servers at `urls`; empty: no key."""

    request_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=1800.0, gt=0)
    """Time limit of one request, in seconds."""

    retries: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=0)
    """How often a failed request is sent again, to another server where there is one."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls


class ServerEngineSettings(RemoteEngineSettings):
    kind: Literal["vllm", "sglang"]
    servers: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Servers that the run starts on this machine when `urls` names none."""

    max_batch: Annotated[int, Mark.SAME_RESULTS] = Field(default=32, gt=0)
    """Maximum number of requests decoded at the same time, by each server that the run starts; more wait."""

    threads: Annotated[int | None, Mark.SAME_RESULTS] = Field(default=None, ge=1)
    """Threads of tensor operations on a CPU, of each server that the run starts; default: one per core."""

    tensor_parallel: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """GPUs over which each server that the run starts splits the model."""

    gpu_memory_fraction: Annotated[float, Mark.SAME_RESULTS] = Field(default=0.85, gt=0, le=1)
    """Share of a GPU's memory for each server that the run starts; no effect on a CPU."""

    python: Annotated[Path | None, Mark.SAME_RESULTS] = None
    """Python interpreter that has vLLM or SGLang installed; default: the one that runs Hone."""

    weight_sync: Annotated[Literal["disk", "nccl", "adapter"], Mark.SAME_RESULTS] = "disk"
    """How new weights reach the servers: through a folder that all of them can read, or from GPU to GPU; a
    server that is replaced under `nccl` takes part again from the next update on. With `train.lora`, `disk`
    sends the weights with the adapters merged, and `adapter` the adapters alone, through a folder."""

    adapter_rank: Annotated[int, Mark.SAME_RESULTS] = Field(default=16, ge=1, le=512)
    """Largest rank of adapters that the servers of the run can load, with `weight_sync = "adapter"`."""

    ready_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=900.0, gt=0)
    """Time limit for a server to start or to load weights, and for a request to wait for a server, in
    seconds."""

    @property
    def managed(self) -> bool:
        return not self.urls

    @model_validator(mode="after")
    def _refuse_settings_without_effect(self) -> Self:
        def is_default(name: str) -> bool:
            return getattr(self, name) == type(self).model_fields[name].default

        if self.weight_sync != "adapter" and not is_default("adapter_rank"):
            raise ValueError('adapter_rank has an effect with weight_sync = "adapter" only: remove it')
        started = ("servers", "max_batch", "threads", "tensor_parallel", "gpu_memory_fraction", "python")
        for name in ("api_key_env",) if self.managed else started:
            if not is_default(name):
                where = "without urls" if self.managed else "at urls"
                raise ValueError(
                    f"{name} has no effect on the engine {self.kind} {where}: remove it, or change urls"
                )
        return self


class OpenAIEngineSettings(RemoteEngineSettings):
    kind: Literal["openai"] = "openai"
    model_name: str = ""
    """Name of the model at the endpoint."""

    @model_validator(mode="after")
    def _require_one_endpoint(self) -> Self:
        if len(self.urls) != 1 or not self.model_name:
            raise ValueError("the engine openai needs one address in urls, and model_name")
        return self


class TinkerEngineSettings(EngineSettings):
    """A service of the Tinker API: at TINKER_BASE_URL, with the key TINKER_API_KEY."""

    kind: Literal["tinker"] = "tinker"
    base_model: str = ""
    """Name of the model at the service; default: `model.path`. The two must have the same weights."""

    request_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=1800.0, gt=0)
    """Time limit of one request, in seconds."""


AnyEngineSettings = Annotated[
    LocalEngineSettings | ServerEngineSettings | OpenAIEngineSettings | TinkerEngineSettings,
    Field(discriminator="kind"),
]
ExactEngineSettings = Annotated[LocalEngineSettings | ServerEngineSettings, Field(discriminator="kind")]
"""Engines of token ids and log-probabilities."""


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

    seed: Annotated[int, Mark.RUN_SEED] = 0
    """Seed of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyModelSettings:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        return self
