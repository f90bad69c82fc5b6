"""Log-probabilities of given tokens from the local engine, against a plain forward pass."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.policy import scoring
from hone.policy.engine import ContextOverflow, EngineError, Sampling
from hone.policy.scoring import ScoreRequest, next_batch
from tests.policy.test_local import serve


@torch.no_grad()
def expected(model, tokens: list[int], start: int) -> np.ndarray:
    ids = torch.tensor([tokens])
    every = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), -1)
    return every[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()


def drawn(count: int) -> list[tuple[list[int], int]]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 200, count)
    return [(rng.integers(0, 280, n).tolist(), int(rng.integers(1, n))) for n in lengths]


@pytest.mark.model
@pytest.mark.parametrize("positions", [2048, 37])  # one pass, and pieces that continue from a cache
def test_scores_equal_a_forward_pass(model, monkeypatch: pytest.MonkeyPatch, positions: int):
    monkeypatch.setattr(scoring, "_POSITIONS", positions)
    asked = drawn(12)

    async def scenario(engine):
        return await asyncio.gather(*(engine.score(tokens, start) for tokens, start in asked))

    for (tokens, start), scores in zip(asked, serve(model, scenario, prefill_tokens=600), strict=True):
        assert scores.dtype == np.float32
        assert scores.shape == (len(tokens) - start,)
        assert np.abs(scores - expected(model, tokens, start)).max() < 1e-4


@pytest.mark.model
def test_scores_of_a_reply_are_its_logprobs(model):
    """Scoring goes on while replies are sampled."""

    async def scenario(engine):
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(engine.generate([4, 5], Sampling(max_tokens=60, seed=2), session="b"))
            reply = await engine.generate([1, 2, 3], Sampling(max_tokens=40, seed=1), session="a")
            scores = await engine.score([1, 2, 3, *reply.token_ids.tolist()], 3)
        return reply, scores, beside.result()

    reply, scores, beside = serve(model, scenario)
    assert np.abs(scores - reply.logprobs).max() < 1e-4
    assert len(beside.token_ids) == 60


@pytest.mark.model
def test_cancelled_scores_leave_the_engine_working(model):
    async def scenario(engine):
        await engine.pause()
        waiting = [asyncio.create_task(engine.score([1, 2, 3], 1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await engine.resume()
        kept = await asyncio.gather(*waiting[1:])
        return kept, waiting[0].cancelled()

    kept, cancelled = serve(model, scenario)
    assert cancelled
    assert np.array_equal(kept[0], kept[1])


@pytest.mark.model
def test_bad_requests_are_refused_one_by_one(model):
    async def scenario(engine):
        with pytest.raises(ValueError, match="scores begin at token 0"):
            await engine.score([1, 2], 0)
        with pytest.raises(ValueError, match="choose one from 1 to 1"):
            await engine.score([1, 2], 2)
        with pytest.raises(ValueError, match="token ids from 0"):
            await engine.score([1, 10**6], 1)
        with pytest.raises(ContextOverflow):
            await engine.score([1] * 50, 1)
        return await engine.score([1] * 49, 1)

    assert len(serve(model, scenario, context_tokens=50)) == 48


@pytest.mark.model
def test_weights_that_diverged_are_an_engine_error(model):
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)

    async def scenario(engine):
        with pytest.raises(EngineError, match="not finite"):
            await engine.score([1, 2, 3], 1)
        with pytest.raises(EngineError, match="not finite"):
            await engine.score([1, 2, 3], 1)

    serve(model, scenario)


@given(st.lists(st.integers(2, 90), min_size=1, max_size=20), st.integers(1, 200))
def test_batches_hold_the_oldest_request_and_keep_their_bound(lengths: list[int], bound: int):
    waiting = [ScoreRequest(tokens=np.zeros(n, np.int32), start=1) for n in lengths]
    while waiting:
        batch = next_batch(waiting, bound)
        assert batch[0] is waiting[0]
        assert len(batch) == 1 or len(batch) * max(len(r.tokens) for r in batch) <= bound
        waiting = [request for request in waiting if request not in batch]
