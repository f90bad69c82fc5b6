"""A reply that grows by parts: an update of the weights may cut it, and it goes on with what it has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hone.policy.engine import Completion, Finish, Sampling
from hone.policy.engines.dialect import Ask, End, Part
from hone.types import Float32, Int32


class Draft:
    """The reply to `prompt`, `limit` tokens at most.

    Each part is sampled after the prompt and all parts before it, with a seed of its own, and keeps the
    version of the weights that sampled it.

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
        self.finish: Finish | None = None  # None: it is not whole yet

    def ask(self) -> Ask:
        """The request for the next part."""
        return Ask(
            prompt=[*self._prompt, *self._tokens],
            sampling=self._sampling,
            limit=self._limit - len(self._tokens),
            seed=_seed(self._sampling.seed, len(self._versions)),
        )

    def add(self, part: Part, versions: Int32) -> None:
        """Lay down the next part, whose tokens are of `versions` [T]."""
        self._tokens += part.token_ids.tolist()
        self._logprobs.append(part.logprobs)
        self._versions.append(versions)
        # A server may stop at its model's own end tokens; those that are not the caller's end nothing.
        if self._tokens and self._tokens[-1] in self._sampling.stop_token_ids:
            self.finish = Finish.STOP
        elif part.end is End.LENGTH or len(self._tokens) >= self._limit:
            self.finish = Finish.LENGTH

    def completion(self) -> Completion:
        """Raises ValueError while the reply is not whole."""
        if self.finish is None:
            raise ValueError("the reply is not whole yet")
        return Completion(
            token_ids=np.asarray(self._tokens, np.int32),
            logprobs=np.concatenate(self._logprobs),
            version=np.concatenate(self._versions),
            finish=self.finish,
        )


def _seed(seed: int | None, part: int) -> int | None:
    """The seed itself for the first part, another one for each further part."""
    if seed is None or part == 0:
        return seed
    return int(np.random.SeedSequence((seed, part)).generate_state(1, np.uint64)[0] >> 1)
