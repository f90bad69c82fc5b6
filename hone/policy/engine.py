"""The engine seam: token ids in, token ids and log-probabilities out.

The rule that must not break: an engine returns the ids it sampled and the log-probabilities it sampled them
with; nobody re-encodes or re-scores them later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hone.types import Float32, Int32


class EngineError(Exception):
    """The engine failed; an infrastructure fault."""


class ContextOverflow(Exception):
    """The prompt leaves no room for a reply in the model's context; the policy's doing."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_tokens}: shorten the "
            "observations, or raise engine.context_tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class Finish(StrEnum):
    STOP = "stop"  # a stop token was sampled; it is the last of token_ids
    LENGTH = "length"  # max_tokens or the context limit was reached
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one reply is drawn.

    The reported log-probability of a token is that of softmax(logits / temperature) over the whole
    vocabulary, before top-p and top-k cut it (at temperature 0, greedy, of softmax(logits)). A trainer can
    therefore reproduce it from logits alone; with top_p = 1 and top_k = 0 it is the sampling distribution.
    With top-p or top-k it is nan where a server only knows it after the cut; such a reply cannot be trained.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None  # same prompt, weights and seed -> same reply, whatever else is in the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    token_ids: Int32  # [T], the stop token included
    logprobs: Float32  # [T]
    version: Int32  # [T], the weight version that sampled each token
    finish: Finish


class Engine(Protocol):
    """Whatever samples replies. How new weights reach it is its own: the local engine shares the trainer's,
    servers load a folder."""

    @property
    def context_tokens(self) -> int:
        """Prompt and reply together may not be longer than this."""
        ...

    @property
    def version(self) -> int:
        """The version of the weights in use; 0 before the first update."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Sample one reply. `session` names the conversation, so that its KV cache can be found again.

        Cancelling the awaiting task frees the request's place in the batch.
        Raises ContextOverflow, EngineError.
        """
        ...

    async def release(self, session: str) -> None:
        """The conversation is over: free its KV cache."""
        ...

    async def pause(self) -> None:
        """Finish the requests in flight and hold new ones back."""
        ...

    async def resume(self) -> None: ...

    async def health(self) -> None:
        """Raise EngineError unless the engine can serve."""
        ...

    async def close(self) -> None: ...
