"""The protocol of one inference server; one small class per kind implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from hone.policy.engine import Sampling
from hone.policy.engines.http import Http
from hone.types import Float32, Int32


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token was sampled; it is the last one
    LENGTH = "length"  # the limit of the request was reached
    ABORT = "abort"  # interrupted by a pause or an abort; the tokens so far are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    prompt: Sequence[int]
    sampling: Sampling  # `limit` and `seed` replace its own
    limit: int  # tokens
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChunk:
    """The result of one request: a complete reply, or the part of it that was sampled before an abort."""

    token_ids: Int32  # [T]
    logprobs: Float32  # [T]
    labels: tuple[str, ...]  # [T] the server's name for the weights that sampled each token
    end: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    context_tokens: int  # prompt and reply together
    label: str  # the server's name for its weights; "default" before the first update


class EngineClient(Protocol):
    """One server. Every call is bounded in time and raises ServerUnavailable or Refused."""

    kind: str
    url: str
    http: Http

    async def server_info(self) -> ServerInfo: ...

    async def health(self) -> None:
        """Raise ServerUnavailable unless the server can serve."""
        ...

    async def generate(self, request: GenerateRequest, *, timeout_s: float) -> CompletionChunk: ...

    async def top_logprobs(
        self, prompt: Sequence[int], *, temperature: float, top_k: int = 0
    ) -> Mapping[int, float]:
        """Return some of the most likely next tokens with their logprobs as the server reports them."""
        ...

    async def sample_text(self, prompt: Sequence[int], count: int) -> tuple[list[int], str]:
        """Return `count` random tokens and the text that the server's tokenizer decodes them to."""
        ...

    async def abort(self) -> None:
        """Interrupt the requests in flight: each ends with its tokens so far."""
        ...

    async def pause(self) -> None:
        """Hold new requests back and abort those in flight."""
        ...

    async def resume(self) -> None: ...

    async def load_weights(self, folder: Path, label: str, *, timeout_s: float) -> None:
        """Load the weights of a Hugging Face folder, name them `label`, drop every cached key and value.

        The server is paused.
        """
        ...

    def is_overflow(self, message: str) -> bool:
        """Return whether an error message says that the prompt is too long."""
        ...
