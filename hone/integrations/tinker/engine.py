"""The engine whose replies a service of the Tinker API samples.

    generate: wait while paused -> sampling client of the present weights -> token ids and log-probabilities
    use:      a sampling client of new weights, after a comparison with the learner's own forward pass

Invariant: a reply is sampled by one sampling client, whose weights are those of the version that it carries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from hone.integrations.tinker.learner import TinkerLearner, scores
from hone.integrations.tinker.service import Service, ServiceError, failure
from hone.policy.engine import (
    Completion,
    EngineError,
    Finish,
    Sampling,
    check_prompt,
    check_scored,
)
from hone.policy.engines.client import WeightMismatch
from hone.policy.settings import TinkerEngineSettings
from hone.types import Float32, Int32
from hone.utils.concurrency import cancel_all, run_in_thread

_SEEDS = 2**31  # services take seeds of 31 bits
_DISTINCT = 10.0  # times nearer to the weights before than to the present ones: they are those
T = TypeVar("T")


class TinkerEngine:
    """An `Engine`; samples from the model without adapters until the first `publish`."""

    def __init__(self, service: Service, settings: TinkerEngineSettings, *, vocabulary: int) -> None:
        """Open a sampler of the base model; blocks. Raises ServiceError."""
        self._service = service
        self._settings = settings
        self._vocabulary = vocabulary
        self._sampler: Any = service.base_sampler()
        self._version = 0
        self._closed = False
        self._running = asyncio.Event()
        self._running.set()
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._previous: Float32 | None = None  # the scores of the probe at the last `publish`

    @property
    def context_tokens(self) -> int:
        return self._settings.context_tokens

    @property
    def version(self) -> int:
        return self._version

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Sample one reply (see `Engine.generate`); the SDK sends a failed request again."""
        prompt = check_prompt(prompt_ids, self._vocabulary, self.context_tokens).tolist()
        types = self._service.sdk.types
        params = types.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=min(sampling.max_tokens, self.context_tokens - len(prompt)),
            stop=list(sampling.stop_token_ids) or None,
            seed=None if sampling.seed is None else sampling.seed % _SEEDS,
        )
        await self._running.wait()
        version = self._version
        reply = await self._answer(
            "sampling", self._sampler.sample(types.ModelInput.from_ints(prompt), 1, params)
        )
        return read_reply(reply.sequences[0], sampling, version, self._service.url)

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        """Return log-probabilities of tokens (see `Engine.score`)."""
        tokens = check_scored(token_ids, start, self._vocabulary, self.context_tokens)
        await self._running.wait()
        prompt = self._service.sdk.types.ModelInput.from_ints(tokens.tolist())
        found = await self._answer("scoring", self._sampler.compute_logprobs(prompt))
        return scores(found, len(tokens), self._service.url)[start - 1 :]

    async def release(self, session: str) -> None:
        """Nothing: the service has caches of its own."""

    async def pause(self) -> None:
        self._running.clear()
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def resume(self) -> None:
        self._running.set()

    async def health(self) -> None:
        await run_in_thread(self._service.check)

    async def close(self) -> None:
        """End the session; requests in flight raise EngineError."""
        self._closed = True
        await cancel_all(list(self._in_flight))
        self._running.set()
        self._service.close()

    async def publish(self, learner: TinkerLearner, version: int, probe: Int32, tolerance: float) -> None:
        """Sample from the learner's present weights from now on, as `version`.

        Requests in flight finish first. Raises WeightMismatch unless the sampler scores `probe` as the
        learner's own forward pass does, within `tolerance`, and no nearer to the weights before.
        """
        await self.pause()
        try:
            expected = await run_in_thread(learner.text_logprobs, probe)
            sampler = await run_in_thread(learner.training.sampler)
            prompt = self._service.sdk.types.ModelInput.from_ints(probe.tolist())
            found = await self._answer("scoring", sampler.compute_logprobs(prompt))
            verify(scores(found, len(probe), self._service.url), expected, self._previous, tolerance)
            self._sampler, self._version, self._previous = sampler, version, expected
        finally:
            await self.resume()

    async def _answer(self, what: str, future: Future[T]) -> T:
        """Return the result of a request of the SDK. Raises EngineError; cancellation drops the request."""
        waiting = asyncio.wrap_future(future)
        self._in_flight.add(waiting)
        limit_s = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except TimeoutError as error:
            raise ServiceError(
                f"{what} took more than engine.request_timeout_s ({limit_s:g} s) at {self._service.url}: see "
                "whether the service is up, or raise it"
            ) from error
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine was closed") from None
            raise
        except Exception as error:
            raise failure(what, self._service.url, error) from error
        finally:
            self._in_flight.discard(waiting)


def read_reply(sequence: Any, sampling: Sampling, version: int, url: str) -> Completion:
    """Return a reply of the SDK as a completion.

    Services report log-probabilities at temperature 1; those of another one are NaN, and so are those that a
    service may have computed after a truncation. Raises EngineError for a reply without log-probabilities, or
    that a stop token does not end.
    """
    tokens = np.asarray(sequence.tokens, np.int32)
    logprobs = np.asarray(sequence.logprobs or [], np.float32)
    if len(logprobs) != len(tokens):
        raise EngineError(f"{url} returned {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    truncated = sampling.top_p < 1 or sampling.top_k > 0
    if sampling.temperature != 0 and (sampling.temperature != 1 or truncated):
        logprobs = np.full(len(tokens), np.nan, np.float32)
    finish = Finish.STOP if str(sequence.stop_reason) == "stop" else Finish.LENGTH
    if finish is Finish.STOP and (not len(tokens) or int(tokens[-1]) not in sampling.stop_token_ids):
        raise EngineError(f"{url} ended a reply at a stop token and left it out: it cannot be trained on")
    return Completion(
        token_ids=tokens,
        logprobs=logprobs,
        version=np.full(len(tokens), version, np.int32),
        finish=finish,
    )


def verify(found: Float32, expected: Float32, previous: Float32 | None, tolerance: float) -> None:
    """Raise WeightMismatch unless a sampler holds the weights whose scores are `expected`.

    Args:
        previous: the scores by the weights before; None: there are none.
    """
    gap = float(np.abs(found - expected).max())
    if gap > tolerance:
        raise WeightMismatch(
            f"the service samples from other weights than it trains: a log-probability differs by {gap:.2g}, "
            f"and {tolerance:g} is allowed"
        )
    if previous is None:
        return
    stale = float(np.abs(found - previous).max())
    if stale * _DISTINCT < gap:
        raise WeightMismatch(
            f"the service still samples from the weights before: a log-probability differs by {stale:.2g} "
            f"from theirs, and by {gap:.2g} from the trained ones"
        )
