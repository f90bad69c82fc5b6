"""What the fleet asks of a server, whatever kind it is; one small class per kind answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from hone.policy.engine import Sampling
from hone.policy.engines.http import Http
from hone.types import Float32, Int32


class End(StrEnum):
    STOP = "stop"  # a stop token was sampled; it is the last one
    LENGTH = "length"  # the limit of the request was reached
    ABORT = "abort"  # cut by a pause or an abort; the tokens so far are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: go on after `prompt`, at most `limit` tokens, as `sampling` says but for its seed."""

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What came of one request: a whole reply, or the beginning of one that was cut."""

    token_ids: Int32  # [T]
    logprobs: Float32  # [T]
    labels: tuple[str, ...]  # [T] the server's name for the weights that sampled each token
    end: End


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server says of itself."""

    context_tokens: int  # prompt and reply together
    label: str  # its name for the weights it holds; "default" before the first update


class Dialect(Protocol):
    """One server, in its own words. Every call is bounded in time; raises Unreachable, Refused."""

    kind: str
    url: str
    http: Http

    async def facts(self) -> Facts: ...

    async def health(self) -> None:
        """Raises Unreachable unless the server can serve."""
        ...

    async def ask(self, ask: Ask, *, timeout_s: float) -> Part: ...

    async def likeliest(
        self, prompt: Sequence[int], *, temperature: float, top_k: int = 0
    ) -> Mapping[int, float]:
        """Some of the likeliest next tokens, and the log-probabilities that the server reports for them."""
        ...

    async def spell(self, prompt: Sequence[int], count: int) -> tuple[list[int], str]:
        """`count` random tokens, and how the server's tokenizer spells them."""
        ...

    async def abort(self) -> None:
        """Cut what runs: each request ends with its tokens so far."""
        ...

    async def pause(self) -> None:
        """Hold back what comes; nothing that matters runs."""
        ...

    async def resume(self) -> None: ...

    async def load(self, folder: Path, label: str, *, timeout_s: float) -> None:
        """Take the weights of a Hugging Face folder, call them `label`, forget every cached key and value.

        The server is paused.
        """
        ...

    def is_overflow(self, message: str) -> bool:
        """Whether a refusal says that the prompt is too long."""
        ...
