"""The engine interface: token ids in, token ids and log-probabilities out.

Invariant: an engine returns the sampled ids and the log-probabilities of the sampling distribution; no later
code re-encodes or re-scores them. `score` gives the log-probabilities of another model's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from hone.types import Float32, Int32, Routing
from hone.utils.errors import HoneError


class EngineError(HoneError):
    """The engine failed; this counts as an infrastructure failure."""


class ContextOverflow(Exception):
    """The prompt leaves no room for a reply in the model's context; this counts as the policy's failure."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_tokens}: shorten the "
            "observations, or raise engine.context_tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


def check_prompt(prompt_ids: Sequence[int] | Int32, vocabulary: int, context_tokens: int) -> Int32:
    """Return the prompt as an array. Raises ValueError for bad ids; ContextOverflow if no reply fits."""
    prompt = np.asarray(prompt_ids, np.int32)
    if not len(prompt) or prompt.min() < 0 or prompt.max() >= vocabulary:
        raise ValueError(f"a prompt is one or more token ids from 0 to {vocabulary - 1}")
    if len(prompt) >= context_tokens:
        raise ContextOverflow(len(prompt), context_tokens)
    return prompt


def check_scored(token_ids: Sequence[int] | Int32, start: int, vocabulary: int, context_tokens: int) -> Int32:
    """Return the tokens to score as an array, as `check_prompt` does; they need the same room as a prompt.

    Raises ValueError unless `start` is at least 1 and below the number of tokens.
    """
    tokens = check_prompt(token_ids, vocabulary, context_tokens)
    if not 1 <= start < len(tokens):
        raise ValueError(f"scores begin at token {start}: choose one from 1 to {len(tokens) - 1}")
    return tokens


def derive_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of the part number `index` of what `seed` begins; None without a seed."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0] >> 1)


class Finish(StrEnum):
    STOP = "stop"  # a stop token was sampled; it is the last of token_ids
    LENGTH = "length"  # max_tokens or the context limit was reached
    ABORT = "abort"  # an update interrupted the request; the fleet continues the reply in another one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of one reply.

    The reported log-probability of a token is that of softmax(logits / temperature) over the full
    vocabulary, before top-p and top-k (at temperature 0, greedy: of softmax(logits)). A trainer can therefore
    reproduce it from logits; with top_p = 1 and top_k = 0 it is the sampling distribution. With top-p or
    top-k it is nan if the server reports only truncated distributions; such a reply cannot be trained on.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None  # same prompt, weights and seed -> same reply in any batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    token_ids: Int32  # [T], the stop token included
    logprobs: Float32  # [T]
    version: Int32  # [T], the weight version that sampled each token
    finish: Finish
    # [P + T - 1, layers, k]: the experts of each position of prompt and reply but the last, which the model
    # has not computed yet. Where an update came in between, those with which a position was first computed.
    routing: Routing | None = None


class Engine(Protocol):
    """Samples replies. Weight updates are not part of it: the local engine shares the trainer's weights,
    servers load a folder."""

    @property
    def context_tokens(self) -> int:
        """Maximum length of prompt and reply together."""
        ...

    @property
    def version(self) -> int:
        """The version of the weights in use; 0 before the first update."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Sample one reply. `session` names the conversation and so its KV cache.

        Cancelling the awaiting task frees the request's row in the batch.
        Raises ContextOverflow, EngineError.
        """
        ...

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        """Return [T - start]: the log-probability of each token from `start` on, after those before it.

        It is that of softmax(logits), at temperature 1. Cancelling the awaiting task drops the request.
        Raises ContextOverflow (for more than `context_tokens` - 1 tokens), EngineError, and ValueError for an
        id out of range or a `start` that is not from 1 to T - 1.
        """
        ...

    async def release(self, session: str) -> None:
        """Free the KV cache of a finished conversation."""
        ...

    async def pause(self) -> None:
        """Finish the requests in flight; hold new ones until `resume`."""
        ...

    async def resume(self) -> None: ...

    async def health(self) -> None:
        """Raise EngineError unless the engine can serve."""
        ...

    async def close(self) -> None: ...
