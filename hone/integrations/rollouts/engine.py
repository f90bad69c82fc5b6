"""The engine of another program, as Hone's chats see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling, check_prompt
from hone.types import Float32, Int32


class Generate(Protocol):
    """The one thing that a peer gives: sample the reply to a prompt."""

    async def __call__(self, prompt_ids: Int32, sampling: Sampling, *, session: str) -> Completion:
        """Return one reply, of `sampling.max_tokens` tokens at most.

        `session` is the same for all requests of a rollout. Any exception, and a reply that ends with
        `Finish.ABORT`, is an infrastructure fault; `ContextOverflow` is the policy's.
        """
        ...


class PeerEngine:
    """An `Engine` that asks the peer's `generate`; weights and their updates are the peer's own business."""

    def __init__(self, generate: Generate, *, vocabulary: int, context_tokens: int) -> None:
        self._generate = generate
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._version = 0

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @property
    def version(self) -> int:
        """The newest version that sampled a token."""
        return self._version

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Raises ContextOverflow, EngineError: the peer failed, or its reply cannot be trained on."""
        prompt = check_prompt(prompt_ids, self._vocabulary, self._context_tokens)
        room = self._context_tokens - len(prompt)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        try:
            completion = await self._generate(prompt, sampling, session=session)
        except (ContextOverflow, EngineError):
            raise
        except Exception as error:
            raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
        self._check(completion)
        self._version = max(self._version, int(completion.version.max()))
        return completion

    def _check(self, completion: Completion) -> None:
        tokens, count = completion.token_ids, len(completion.token_ids)
        if completion.finish is Finish.ABORT:
            raise EngineError("the engine aborted a reply")
        if not count or len(completion.logprobs) != count or len(completion.version) != count:
            raise EngineError(
                f"the engine returned {count} token ids with {len(completion.logprobs)} log-probabilities "
                f"and {len(completion.version)} versions: a reply has one of each for every token"
            )
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise EngineError(f"the engine returned a token id outside 0 to {self._vocabulary - 1}")
        if not np.isfinite(completion.logprobs).all():
            raise EngineError("the engine returned a log-probability that is not a finite number")

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        raise EngineError("the engine of another trainer scores no tokens")

    async def release(self, session: str) -> None:
        """Do nothing: the peer evicts conversations from its cache itself."""

    async def pause(self) -> None:
        """Do nothing: the peer holds requests during its updates itself."""

    async def resume(self) -> None:
        """Do nothing, see `pause`."""

    async def health(self) -> None:
        """Do nothing: a failed request says so."""

    async def close(self) -> None:
        """Do nothing: the engine is the peer's."""
