"""A reply that is sampled in several requests, because weight updates may interrupt it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hone.policy.engine import Completion, Finish, Sampling, derive_seed
from hone.policy.engines.client import CompletionChunk, GenerateRequest
from hone.types import Float32, Int32


class PartialCompletion:
    """The reply to `prompt`, `limit` tokens at most.

    Each chunk continues the prompt and all chunks before it, has its own seed, and keeps the version of the
    weights that sampled it.

    Example: 3 tokens of version 4, an update, 2 tokens of version 5 and a stop token:
        version = [4, 4, 4, 5, 5, 5]
    """

    def __init__(self, prompt: Sequence[int], sampling: Sampling, limit: int) -> None:
        self._prompt = list(prompt)
        self._sampling = sampling
        self._limit = limit
        self._tokens: list[int] = []
        self._logprobs: list[Float32] = []
        self._versions: list[Int32] = []
        self.finish: Finish | None = None  # None: incomplete

    def next_request(self) -> GenerateRequest:
        """Return the request for the next chunk; the first one has the seed of the sampling itself."""
        seed, chunk = self._sampling.seed, len(self._versions)
        return GenerateRequest(
            prompt=[*self._prompt, *self._tokens],
            sampling=self._sampling,
            limit=self._limit - len(self._tokens),
            seed=derive_seed(seed, chunk) if chunk else seed,
        )

    def add(self, chunk: CompletionChunk, versions: Int32) -> None:
        """Append a chunk whose tokens are of `versions` ([T])."""
        self._tokens += chunk.token_ids.tolist()
        self._logprobs.append(chunk.logprobs)
        self._versions.append(versions)
        # A server may also stop at its model's own end tokens, which do not end this reply.
        if self._tokens and self._tokens[-1] in self._sampling.stop_token_ids:
            self.finish = Finish.STOP
        elif chunk.end is Finish.LENGTH or len(self._tokens) >= self._limit:
            self.finish = Finish.LENGTH

    def completion(self) -> Completion:
        """Return the complete reply. Raises ValueError while it is incomplete."""
        if self.finish is None:
            raise ValueError("the reply is incomplete")
        return Completion(
            token_ids=np.asarray(self._tokens, np.int32),
            logprobs=np.concatenate(self._logprobs),
            version=np.concatenate(self._versions),
            finish=self.finish,
        )
