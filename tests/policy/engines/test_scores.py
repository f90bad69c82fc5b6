"""Log-probabilities of given tokens from servers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.engines.client import ServerUnavailable
from hone.policy.engines.sglang import parse_scores as parse_sglang
from hone.policy.engines.vllm import parse_scores as parse_vllm
from tests.policy.engines.conftest import OpenFleet
from tests.policy.engines.sglang_server import toy_logprobs
from tests.virtual_time import run as run_virtual

TOKENS = [5, 6, 7, 8, 9]


def fail_scores(server: Any, times: int) -> None:
    """Make the next requests for scores fail, which carry no stop tokens."""
    real = server._scores

    def scores(prompt: list[int], start: int) -> list[Any]:
        nonlocal times
        if start >= 0 and times:
            times -= 1
            raise web.HTTPInternalServerError
        return real(prompt, start)

    server._scores = scores


def test_scores_are_those_of_the_server(open_toys: OpenFleet, tokenizer):
    tokens = [*TOKENS, len(tokenizer) - 1]  # SGLang names its last token 0

    async def run():
        async with open_toys() as (fleet, _):
            return [await fleet.score(tokens, start) for start in (1, 4)]

    every, last = run_virtual(run())
    expected = [toy_logprobs(0, a, len(tokenizer))[b] for a, b in itertools.pairwise(tokens)]
    assert every.dtype == np.float32
    np.testing.assert_allclose(every, expected, atol=1e-5)
    np.testing.assert_allclose(last, expected[3:], atol=1e-5)


def test_failed_score_is_asked_again_elsewhere(open_toys: OpenFleet):
    async def run():
        async with open_toys(servers=2) as (fleet, servers):
            whole = await fleet.score(TOKENS, 1)
            for server in servers:
                fail_scores(server, 1)
            return whole, await fleet.score(TOKENS, 1)

    whole, again = run_virtual(run())
    np.testing.assert_array_equal(whole, again)


def test_score_that_keeps_failing_is_an_engine_error(open_toys: OpenFleet):
    async def run():
        async with open_toys(retries=2) as (fleet, (server,)):
            fail_scores(server, 100)
            with pytest.raises(EngineError, match="3 attempts to get a reply failed"):
                await fleet.score(TOKENS, 1)

    run_virtual(run())


def test_too_many_tokens_are_a_context_overflow(open_toys: OpenFleet):
    async def run():
        async with open_toys() as (fleet, _):
            with pytest.raises(ContextOverflow):
                await fleet.score([5] * 100, 1)
            with pytest.raises(ValueError, match="scores begin at token 3"):
                await fleet.score([5, 6, 7], 3)
            return await fleet.score([5] * 99, 98)

    assert len(run_virtual(run())) == 1


def test_cancelled_score_frees_its_place(open_toys: OpenFleet):
    async def run():
        async with open_toys() as (fleet, _):
            waiting = asyncio.create_task(fleet.score(TOKENS, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await fleet.pause()  # returns once no request is in flight
            await fleet.resume()
            return waiting.cancelled(), await fleet.score(TOKENS, 1)

    cancelled, scores = run_virtual(run())
    assert cancelled
    assert len(scores) == 4


def sglang_reply(entries: list[list[Any]]) -> dict[str, Any]:
    return {"meta_info": {"input_token_logprobs": entries, "weight_version": "4"}}


def vllm_reply(entries: list[dict[str, Any] | None]) -> dict[str, Any]:
    versions = [{"start": 0, "end": 1, "version": "4"}]
    return {"prompt_logprobs": entries, "choices": [{"weight_versions": versions}]}


def test_scores_of_both_formats_are_read():
    sglang = sglang_reply([[None, 5, None], [-0.5, 6, None], [-1.5, 0, None]])
    vllm = vllm_reply([None, {"6": {"logprob": -0.5}}, {"7": {"logprob": -1.5}, "9": {"logprob": -0.1}}])
    scored = parse_sglang("u", sglang, [6, 7]), parse_vllm("u", vllm, [5, 6, 7], 1)
    for each in scored:
        assert (each.logprobs.tolist(), each.label) == ([-0.5, -1.5], "4")
    assert parse_vllm("u", vllm, [5, 6, 7], 2).logprobs.tolist() == [-1.5]


@pytest.mark.parametrize(
    "entries", [[[-0.5, 9, None]], [[-0.5, 6, None], [-1.0, 7, None]], [[float("-inf"), 6, None]]]
)
def test_sglang_scores_of_other_tokens_are_refused(entries: list[list[Any]]):
    with pytest.raises(ServerUnavailable, match=r"other tokens|no probability"):
        parse_sglang("u", sglang_reply([[None, 5, None], *entries]), [6])


@pytest.mark.parametrize("entry", [None, {"9": {"logprob": -0.5}}, {"6": {"logprob": -9999.0}}])
def test_vllm_scores_of_other_tokens_are_refused(entry: dict[str, Any] | None):
    with pytest.raises(ServerUnavailable, match=r"other tokens|no probability"):
        parse_vllm("u", vllm_reply([None, entry]), [5, 6], 1)
