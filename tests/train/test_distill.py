"""On-policy distillation: the formula, a teacher that fails, and what a policy learns."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.policy.engine import EngineError
from hone.policy.settings import ModelSettings
from hone.train.distill import Score, Teacher, distilled, reverse_kl
from hone.train.distill_settings import DistillSettings
from hone.train.errors import TrainError
from hone.types import Float32, Int32, Sample
from tests.train.trajectories import multi_turn_samples


def settings(**changes: Any) -> DistillSettings:
    return DistillSettings(enabled=True, model=ModelSettings(path=Path("teacher")), **changes)


def teacher(score: Score, attempts: int = 3, **changes: Any) -> Teacher:
    return Teacher(
        score=score, settings=settings(**changes), attempts=attempts, delays=lambda: itertools.repeat(0.0)
    )


def scored(rng: np.random.Generator, count: int = 6) -> tuple[list[Sample], list[Float32]]:
    """Samples with engine log-probabilities, and a teacher's scores of their trained tokens."""

    def drawn(sample: Sample) -> Float32:
        return np.where(sample.weight > 0, -rng.exponential(2, len(sample.tokens)), 0).astype(np.float32)

    samples = [replace(s, logprobs=drawn(s)) for s in multi_turn_samples(count, seed=int(rng.integers(99)))]
    return samples, [drawn(sample) for sample in samples]


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10), st.booleans())
def test_advantage_is_the_scaled_gain_of_each_trained_token(seed: int, coefficient: float, outcome: bool):
    samples, scores = scored(np.random.default_rng(seed))
    wanted = settings(coefficient=coefficient, outcome_reward=outcome)
    for before, score, after in zip(samples, scores, distilled(samples, scores, wanted), strict=True):
        expected = [
            (coefficient * (float(p) - float(q)) + (float(own) if outcome else 0.0)) if w > 0 else 0.0
            for p, q, own, w in zip(score, before.logprobs, before.advantage, before.weight, strict=True)
        ]
        assert after.advantage.dtype == np.float32
        np.testing.assert_allclose(after.advantage, expected, rtol=1e-5, atol=1e-5)
        for name in ("tokens", "weight", "logprobs", "version"):
            assert np.array_equal(getattr(before, name), getattr(after, name))


def test_kl_is_the_mean_over_trained_tokens():
    (sample, *_), (score, *_) = scored(np.random.default_rng(5))
    trained = sample.weight > 0
    kl, tokens = reverse_kl([sample], [score])
    assert tokens == trained.sum()
    assert kl == pytest.approx(float((sample.logprobs - score)[trained].mean()), rel=1e-5)
    assert reverse_kl([], []) == (0.0, 0)


def by_position(log: list[tuple[int, int]]) -> Callable[[Int32, int], Awaitable[Float32]]:
    """Score token i of a sequence -i - 1; record (tokens, start) of each request."""

    async def score(tokens: Int32, start: int) -> Float32:
        log.append((len(tokens), start))
        return -np.arange(start, len(tokens), dtype=np.float32) - 1

    return score


def with_observation(sample: Sample) -> Sample:
    """The sample with three rendered tokens behind its last reply."""
    names = ("tokens", "weight", "advantage", "logprobs", "version")
    return replace(sample, **{name: np.pad(getattr(sample, name), (0, 3)) for name in names})


def test_each_token_is_scored_in_its_own_context():
    asked: list[tuple[int, int]] = []
    samples = [with_observation(sample) for sample in multi_turn_samples(4)]
    samples = [replace(s, logprobs=-np.ones_like(s.weight) * (s.weight > 0)) for s in samples]
    result, metrics = asyncio.run(teacher(by_position(asked)).distill(samples))
    for sample, after, (length, start) in zip(samples, result, asked, strict=True):
        trained = np.flatnonzero(sample.weight > 0)
        assert (start, length) == (trained[0], trained[-1] + 1)  # nothing behind the last trained token
        np.testing.assert_array_equal(after.advantage[trained], -trained.astype(np.float32))
    gaps = [position for s in samples for position in np.flatnonzero(s.weight > 0)]
    assert metrics["distill/kl"] == pytest.approx(np.mean(gaps), rel=1e-6)
    assert metrics["distill/tokens"] == len(gaps)


def test_failed_request_is_repeated():
    good, failures = by_position([]), itertools.count()

    async def score(tokens: Int32, start: int) -> Float32:
        if next(failures) < 2:
            raise EngineError("the server is restarting")
        return await good(tokens, start)

    result, _ = asyncio.run(teacher(score).distill(multi_turn_samples(1)))
    assert result[0].advantage.any()


def test_teacher_that_keeps_failing_ends_the_step():
    async def score(tokens: Int32, start: int) -> Float32:
        raise EngineError("out of memory")

    with pytest.raises(EngineError, match="the teacher failed 2 times to score rollout r0: out of memory"):
        asyncio.run(teacher(score, attempts=2).distill(multi_turn_samples(1)))


def test_teacher_that_hangs_is_an_engine_error():
    async def score(tokens: Int32, start: int) -> Float32:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(EngineError, match=r"no scores within 0\.01 s"):
        asyncio.run(teacher(score, timeout_s=0.01).distill(multi_turn_samples(1)))


@pytest.mark.parametrize("wrong", [np.zeros(1, np.float32), None])
def test_scores_that_do_not_fit_are_refused(wrong: Float32 | None):
    async def score(tokens: Int32, start: int) -> Float32:
        return np.full(len(tokens) - start, np.nan, np.float32) if wrong is None else wrong

    with pytest.raises(TrainError, match="rollout r0: the teacher returned"):
        asyncio.run(teacher(score).distill(multi_turn_samples(1)))


def test_requests_are_bounded():
    running = most = 0

    async def score(tokens: Int32, start: int) -> Float32:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return np.zeros(len(tokens) - start, np.float32)

    asyncio.run(teacher(score, concurrency=3).distill(multi_turn_samples(12)))
    assert most == 3


def lines(run_dir: Path) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.model
def test_engine_scores_are_the_trainers_logprobs():
    from hone.policy.local import LocalEngine
    from hone.policy.settings import LocalEngineSettings
    from tests.train.examples import tiny_model, trainer_of

    samples = multi_turn_samples()

    async def score() -> tuple[list[Sample], dict[str, float]]:
        engine = LocalEngine(tiny_model(), LocalEngineSettings(context_tokens=256))
        try:
            return await teacher(engine.score).distill(samples)
        finally:
            await engine.close()

    result, _ = asyncio.run(score())  # the engine's log-probabilities are 0: advantages are the scores
    for sample, own, after in zip(samples, trainer_of(tiny_model()).logprobs(samples), result, strict=True):
        assert np.abs(after.advantage - own)[sample.weight > 0].max() <= 1e-4


@pytest.mark.model
def test_policy_approaches_its_teacher(tmp_path: Path):
    from tests.train.examples import tiny_model

    steps = learn(tmp_path, 12, teacher_model=tiny_model(7))
    kl = [step["distill/kl"] for step in steps]
    assert len(kl) == 12
    assert np.mean(kl[-3:]) < 0.8 * np.mean(kl[:3])


@pytest.mark.model
@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_policy_earns_what_its_teacher_earns_without_rewards(tmp_path: Path, seed: int):
    """The teacher has learned from rewards; the policy learns from its scores alone."""
    from tests.train.examples import tiny_model

    teacher_model = tiny_model(seed)
    rewarded = learn(tmp_path / "teacher", 12, model=teacher_model)
    taught = learn(tmp_path / "policy", 30, model=tiny_model(seed), teacher_model=teacher_model)
    kl = [step["distill/kl"] for step in taught]
    reward = [step["reward"] for step in taught]
    goal = np.mean([step["reward"] for step in rewarded[-3:]])
    assert np.mean(kl[-5:]) < 0.5 * np.mean(kl[:5])
    assert np.mean(reward[-5:]) > np.mean(reward[:5]) + 0.5 * (goal - np.mean(reward[:5]))


def learn(
    run_dir: Path, steps: int, *, model: Any = None, teacher_model: Any = None
) -> Sequence[dict[str, Any]]:
    """Train `model` in place on the toy task, by its teacher if there is one; return the metrics by step."""
    from hone.policy.local import LocalEngine
    from hone.policy.settings import LocalEngineSettings
    from hone.train.loop import train
    from hone.train.trainer import policy_trainer
    from tests.train.toy_run import ToyRun, settings_of

    async def run() -> None:
        wanted = settings_of(steps, every=steps)
        trainer = None if model is None else policy_trainer(model, wanted, temperature=1.0)
        toy = ToyRun(run_dir, wanted, trainer=trainer)
        toy.model = model or toy.model
        if teacher_model is None:
            await train(toy.parts)
            toy.close()
            return
        engine = LocalEngine(teacher_model, LocalEngineSettings(context_tokens=64))
        try:
            await train(replace(toy.parts, distill=teacher(engine.score).distill))
        finally:
            await engine.close()
            toy.close()

    asyncio.run(run())
    return lines(run_dir)
