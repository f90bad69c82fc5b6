"""Many servers as one engine: replies, routing and failover."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp import web

from hone.policy.engine import ContextOverflow, EngineError, Finish, Sampling
from hone.policy.engines.vllm import Vllm
from tests.policy.engines.conftest import OpenFleet, fleet_over, require_exact
from tests.policy.engines.sglang_server import SglangServer, sglang_servers
from tests.virtual_time import run as run_virtual

PROMPT = [5, 6, 7, 8]
STOP = (3,)


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": 12, "seed": 1, "stop_token_ids": STOP, **changes})


def broken(request: web.Request) -> web.Response:
    return web.json_response({"error": "out of luck"}, status=500)


def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def garbage(request: web.Request) -> web.Response:
    return web.Response(text="<html>")


def strange(request: web.Request) -> web.Response:
    return web.json_response({"choices": []})


def silent(request: web.Request) -> web.Response:
    choice = {"token_ids": [], "logprobs": None, "weight_versions": [], "finish_reason": "stop"}
    return web.json_response({"choices": [choice]})


def test_reply_continues_after_a_foreign_end_token(open_toys: OpenFleet, tokenizer):
    async def run():
        async with open_toys() as (fleet, (server,)):
            server.ends = set(range(0, len(tokenizer), 2))
            reply = await fleet.generate(PROMPT, sampling(max_tokens=20, stop_token_ids=(313,)), session="s")
            return reply, len(server.generate_requests)

    reply, requests = run_virtual(run())
    assert len(reply.token_ids) == 20 or reply.token_ids[-1] == 313
    assert requests > 1
    require_exact(PROMPT, reply, {0: 0}, len(tokenizer))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_are_those_of_the_sampling_distribution(open_toys: OpenFleet, tokenizer, temperature):
    async def run():
        async with open_toys() as (fleet, _):
            return await fleet.generate(PROMPT, sampling(temperature=temperature), session="s")

    reply = run_virtual(run())
    require_exact(PROMPT, reply, {0: 0}, len(tokenizer), temperature or 1.0)
    assert len(reply.token_ids) == len(reply.logprobs) == len(reply.version)
    assert (reply.finish is Finish.STOP) == (reply.token_ids[-1] in STOP)


def test_reply_ends_with_its_stop_token_or_at_its_limit(open_toys: OpenFleet, tokenizer):
    async def run():
        async with open_toys() as (fleet, _):
            every = tuple(range(len(tokenizer)))
            stopped = await fleet.generate(PROMPT, sampling(stop_token_ids=every), session="s")
            full = await fleet.generate(PROMPT, sampling(stop_token_ids=(), max_tokens=5), session="s")
            short = await fleet.generate([5] * 97, sampling(stop_token_ids=()), session="s")
            return stopped, full, short

    stopped, full, short = run_virtual(run())
    assert (len(stopped.token_ids), stopped.finish) == (1, Finish.STOP)
    assert (len(full.token_ids), full.finish) == (5, Finish.LENGTH)
    assert (len(short.token_ids), short.finish) == (3, Finish.LENGTH)  # the context is 100


def test_too_long_prompt_is_a_context_overflow(open_toys: OpenFleet):
    async def run():
        async with open_toys() as (fleet, (server,)):
            with pytest.raises(ContextOverflow, match="100 tokens and the model's context is 100"):
                await fleet.generate([5] * 100, sampling(), session="s")
            server.context = 50
            with pytest.raises(ContextOverflow):
                await fleet.generate([5] * 60, sampling(), session="s")
            with pytest.raises(ValueError, match="token ids"):
                await fleet.generate([], sampling(), session="s")
            return await fleet.generate(PROMPT, sampling(), session="s")

    assert len(run_virtual(run()).token_ids)


def test_new_conversations_go_to_the_least_loaded_server(open_toys: OpenFleet):
    async def run():
        async with open_toys(servers=3) as (fleet, servers):
            prompts = {f"s{i}": [10 + i] for i in range(12)}
            for turn in range(4):
                order = random.Random(turn).sample(sorted(prompts), len(prompts))
                await asyncio.gather(*(fleet.generate(prompts[s], sampling(), session=s) for s in order))
            return [[body["input_ids"][0] for body in server.generate_requests] for server in servers]

    seen = run_virtual(run())
    assert [len(requests) for requests in seen] == [16, 16, 16]
    assert all(len(set(requests)) == 4 for requests in seen)


@pytest.mark.parametrize("fault", [broken, cut, garbage, strange, silent])
def test_failed_request_is_retried_on_another_server(open_toys: OpenFleet, tokenizer, fault):
    async def run():
        async with open_toys(servers=2) as (fleet, servers):
            first = await fleet.generate(PROMPT, sampling(), session="s")
            home = next(server for server in servers if server.generate_requests)
            home.faults = [fault]
            again = await fleet.generate(PROMPT, sampling(), session="s")
            return first, again, [len(server.generate_requests) for server in servers]

    first, again, served = run_virtual(run())
    assert first.token_ids.tolist() == again.token_ids.tolist()  # same seed, same weights
    assert sorted(served) == [1, 2]
    require_exact(PROMPT, again, {0: 0}, len(tokenizer))


def test_server_death_during_a_reply_loses_no_reply(open_toys: OpenFleet, tokenizer):
    async def run():
        async with open_toys(servers=2) as (fleet, servers):
            for server in servers:
                server.hold = asyncio.Event()
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(max_tokens=6), session="s"))
            waiting = [asyncio.create_task(server.holding.wait()) for server in servers]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            dying, other = sorted(servers, key=lambda s: not s.holding.is_set())
            await dying.stop()
            await other.holding.wait()
            other.hold.set()
            return await reply

    require_exact(PROMPT, run_virtual(run()), {0: 0}, len(tokenizer))


def test_requests_wait_for_the_only_server_to_restart(open_toys: OpenFleet, tokenizer, weights):
    async def run():
        async with open_toys() as (fleet, (server,)):
            await fleet.load_weights(weights(7), 7)
            await server.restart()  # another process with its first weights
            return await fleet.generate(PROMPT, sampling(), session="s"), server.label

    reply, label = run_virtual(run())
    assert label == "7"
    assert set(reply.version.tolist()) == {7}
    require_exact(PROMPT, reply, {7: 7}, len(tokenizer))


def test_request_fails_after_its_retries(open_toys: OpenFleet):
    async def run():
        async with open_toys(retries=1) as (fleet, (server,)):
            server.faults = [broken] * 2
            with pytest.raises(EngineError, match=r"2 attempts to get a reply failed.*out of luck"):
                await fleet.generate(PROMPT, sampling(), session="s")
            return await fleet.generate(PROMPT, sampling(), session="s")

    assert len(run_virtual(run()).token_ids)


def test_request_without_a_server_fails_after_a_bounded_wait(open_toys: OpenFleet):
    async def run():
        async with open_toys(ready_timeout_s=10.0) as (fleet, (server,)):
            await server.stop()
            with pytest.raises(
                EngineError, match=r"no engine server is healthy: no engine answers at http://127"
            ):
                await fleet.generate(PROMPT, sampling(), session="s")
            with pytest.raises(EngineError):
                await fleet.health()

    run_virtual(run())


def test_cancelled_request_leaves_nothing_behind(open_toys: OpenFleet, weights):
    async def run():
        async with open_toys() as (fleet, (server,)):
            server.hold = asyncio.Event()
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            await server.holding.wait()
            reply.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reply
            await asyncio.wait_for(fleet.load_weights(weights(1), 1), 60)  # waits for no request
            server.hold = None
            return await fleet.generate(PROMPT, sampling(), session="s")

    assert set(run_virtual(run()).version.tolist()) == {1}


def test_pause_waits_for_running_requests_and_holds_new_ones(open_toys: OpenFleet):
    async def run():
        async with open_toys() as (fleet, (server,)):
            server.hold = asyncio.Event()
            running = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="a"))
            await server.holding.wait()
            pausing = asyncio.create_task(fleet.pause())
            await asyncio.sleep(0)
            later = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="b"))
            server.hold.set()
            await pausing
            assert running.done()
            assert (len(server.generate_requests), later.done()) == (1, False)
            await fleet.resume()
            await later
            return len(server.generate_requests)

    assert run_virtual(run()) == 2


def test_close_fails_waiting_requests(open_toys: OpenFleet):
    async def run():
        async with open_toys() as (fleet, _):
            await fleet.pause()
            waiting = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            await asyncio.sleep(0)
            await fleet.close()
            with pytest.raises(EngineError, match="closed"):
                await waiting

    run_virtual(run())


def test_unusable_server_is_refused(open_toys: OpenFleet, tokenizer):
    async def refusal(change, **settings) -> str:
        async with sglang_servers(tokenizer) as (server,):
            change(server)
            with pytest.raises(EngineError) as caught:
                await _open_and_close(server, tokenizer, **settings)
        return str(caught.value)

    async def run():
        def other_words(server: SglangServer) -> None:
            server.tokenizer = _Backwards(tokenizer)

        def small(server: SglangServer) -> None:
            server.vocabulary -= 1

        def raw(server: SglangServer) -> None:
            server.raw_logprobs = True

        return [
            await refusal(other_words),
            await refusal(small),
            await refusal(raw),
            await refusal(lambda _: None, context_tokens=122),
            await refusal(lambda _: None, client=Vllm),
            await refusal(lambda server: setattr(server, "url", "http://127.0.0.1:1")),
        ]

    words, small, raw, short, kind, down = run_virtual(run())
    assert "another vocabulary than the tokenizer" in words
    assert "another vocabulary than the tokenizer" in small
    assert "do not follow temperature" in raw
    assert "a context of 121 tokens and engine.context_tokens is 122" in short
    assert "hone engine serve MODEL --kind vllm" in kind
    assert "no engine answers at http://127.0.0.1:1" in down


async def _open_and_close(server: SglangServer, tokenizer, **settings) -> None:
    async with fleet_over([server], tokenizer, **settings):
        pass


class _Backwards:
    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids, **settings) -> str:
        return self._tokenizer.decode(ids, **settings)[::-1]
