"""On-policy distillation: the teacher's log-probabilities of the policy's own tokens as advantages.

    samples -> the teacher scores each trained token in its context -> advantage per token

With teacher p, policy q and a token x that q sampled after the context c, log q(x | c) - log p(x | c) is the
one-sample estimate of the reverse KL divergence KL(q, p) at c (arXiv:2306.13649, section 3). Its negative is
the token's advantage ("On-Policy Distillation", Thinking Machines, 2025): the policy gradient then lowers the
divergence at each context that the policy reaches.

Invariant: a token without a score never trains; a teacher that fails ends the step with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hone.policy.engine import EngineError
from hone.train.distill_settings import DistillSettings
from hone.train.errors import TrainError
from hone.types import Float32, Int32, Sample
from hone.utils.concurrency import task_group
from hone.utils.retry import retry

Score = Callable[[Int32, int], Awaitable[Float32]]
"""(tokens, start) -> [T - start] log-probabilities; see `hone.policy.engine.Engine.score`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Scores the samples of a step.

    `attempts` and `delays` say how often, and after which seconds, a failed request is repeated.
    """

    score: Score
    settings: DistillSettings
    attempts: int
    delays: Callable[[], Iterator[float]]

    async def distill(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples with the teacher's advantages, and metrics.

        Metrics: distill/kl, the mean over the trained tokens of log q - log p in nats, which estimates
        KL(policy, teacher); distill/tokens that were scored; distill/seconds.

        Raises EngineError when the teacher does not score a sample after `attempts` requests, TrainError
        when it returns another number of scores than of tokens, or one that is not finite.
        """
        started = time.monotonic()
        places = asyncio.Semaphore(self.settings.concurrency)

        async def score(sample: Sample) -> Float32:
            async with places:
                return await self._score(sample)

        async with task_group() as group:
            jobs = [group.create_task(score(sample)) for sample in samples]
        scores = [job.result() for job in jobs]
        kl, tokens = reverse_kl(samples, scores)
        metrics = {"distill/kl": kl, "distill/tokens": tokens, "distill/seconds": time.monotonic() - started}
        return distilled(samples, scores, self.settings), metrics

    async def _score(self, sample: Sample) -> Float32:
        """Return [T] the teacher's log-probability of each trained token, 0 elsewhere."""
        trained = np.flatnonzero(sample.weight > 0)
        start, end = int(trained[0]), int(trained[-1]) + 1

        async def attempt() -> Float32:
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    return await self.score(sample.tokens[:end], start)
            except TimeoutError:
                raise EngineError(f"no scores within {self.settings.timeout_s:g} s") from None

        try:
            found = await retry(
                attempt,
                attempts=self.attempts,
                delays=self.delays(),
                transient=lambda error: isinstance(error, EngineError),
            )
        except EngineError as error:
            raise EngineError(
                f"the teacher failed {self.attempts} times to score rollout {sample.rollout_id}: {error}. "
                "Run the same command again to continue"
            ) from error
        if found.shape != (end - start,) or not np.isfinite(found).all():
            raise TrainError(
                f"rollout {sample.rollout_id}: the teacher returned {found.shape} scores for {end - start} "
                "tokens, or some that are not finite: check train.distill.engine"
            )
        scores = np.zeros(len(sample.tokens), np.float32)
        scores[start:end] = found
        return np.where(sample.weight > 0, scores, np.float32(0))


def distilled(
    samples: Sequence[Sample], scores: Sequence[Float32], settings: DistillSettings
) -> list[Sample]:
    """Return the samples with coefficient * (log p - log q) as the advantage of each trained token.

    With `outcome_reward` it is added to the sample's own advantage. `scores` are log p, [T] per sample; log q
    is what the engine reported when it sampled the token.

    Example: coefficient 0.5, log q [-1, -2], log p [-3, -1], own advantages [1, 1]:
        [-1, 0.5], or [0, 1.5] with `outcome_reward`.
    """
    result: list[Sample] = []
    for sample, score in zip(samples, scores, strict=True):
        gain = np.float32(settings.coefficient) * (score - sample.logprobs)
        own = sample.advantage if settings.outcome_reward else np.float32(0)
        advantage = np.where(sample.weight > 0, own + gain, np.float32(0))
        result.append(replace(sample, advantage=advantage.astype(np.float32)))
    return result


def reverse_kl(samples: Sequence[Sample], scores: Sequence[Float32]) -> tuple[float, int]:
    """Return the mean of log q - log p over the trained tokens, in nats, and their number."""
    gaps = [
        (sample.logprobs - score)[sample.weight > 0].astype(np.float64)
        for sample, score in zip(samples, scores, strict=True)
    ]
    every = np.concatenate(gaps) if gaps else np.zeros(0)
    return (float(every.mean()) if len(every) else 0.0), len(every)
