"""Requests that take long to encode: others are answered meanwhile; what is too much is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from hone.policy.chat import Chat
from hone.policy.engine import Sampling
from hone.policy.gateway import session as sessions
from hone.policy.gateway.wire import fields
from hone.types import Message
from tests.policy.gateway.world import BEGIN, DONE, World, open_world
from tests.waiting import LIMIT_S

LONG = {"role": "user", "content": "a b " * 20_000}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [LONG]},
    "/messages": {"messages": [LONG], "max_tokens": 10},
    "/messages/count_tokens": {"messages": [LONG]},
    "/responses": {"input": [LONG]},
}


class HeldRenderer:
    """Holds the rendering of long conversations in its thread, and that of short ones nowhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, renderer: Any) -> None:
        self._render, self.rendered = renderer.render_ids, 0
        self._begun, self._released = threading.Event(), threading.Event()
        monkeypatch.setattr(renderer, "render_ids", self)

    def __call__(self, messages: Sequence[Message], **options: Any) -> list[int]:
        if len(str(messages)) > len(LONG["content"]):
            self._begun.set()
            assert self._released.wait(LIMIT_S)
            self.rendered += 1
        return self._render(messages, **options)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, LIMIT_S)

    def release(self) -> None:
        self._released.set()


async def is_well(world: World) -> bool:
    async with world.http.get(f"{world.gateway.url}/healthz") as response:
        return (response.status, await response.json()) == (200, {"ok": True})


async def reply_of_another_session(world: World, renderer: Any) -> int:
    chat = Chat(world.engine, renderer, Sampling(max_tokens=1000), session="other")
    session = world.gateway.open(chat)
    url = f"{world.gateway.url}{session.path}/chat/completions"
    async with world.http.post(url, json={"messages": BEGIN}) as response:
        status = response.status
    await world.gateway.close(session)
    return status


@pytest.mark.parametrize("path", BODIES)
def test_others_are_answered_while_a_long_prompt_is_encoded(
    renderer_and_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            held = HeldRenderer(monkeypatch, renderer_and_tokenizer[0])
            asks = [asyncio.create_task(world.post(path, BODIES[path])) for _ in range(8)]
            await held.begun()
            assert await is_well(world)
            held.release()
            assert {status for status, _ in await asyncio.gather(*asks)} == {200}
            assert await is_well(world)
            assert held.rendered <= 1  # the same prompt is encoded once
            assert world.engine.calls == (0 if "count" in path else 1)

    asyncio.run(converse())


def test_another_session_gets_its_reply_while_a_long_prompt_is_encoded(
    renderer_and_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            held = HeldRenderer(monkeypatch, renderer_and_tokenizer[0])
            body = json.dumps({"messages": [LONG]}).encode()
            ask = asyncio.create_task(world.post("/messages/count_tokens", body))
            await held.begun()
            calls = world.engine.calls
            assert await reply_of_another_session(world, renderer_and_tokenizer[0]) == 200
            assert not ask.done()
            held.release()
            status, counted = await ask
            assert status == 200
            assert counted["input_tokens"] > 20_000
            world.engine.calls = calls
            world.engine.prompts.clear()  # of the other session, which this world does not know
            world.engine.completions.clear()

    asyncio.run(converse())


def test_closing_a_session_ends_its_waiting_requests(
    renderer_and_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            held = HeldRenderer(monkeypatch, renderer_and_tokenizer[0])
            ask = asyncio.create_task(world.chat_completion([LONG]))
            await held.begun()
            closing = asyncio.create_task(world.gateway.close(world.session))
            assert await is_well(world)
            held.release()
            await closing
            assert (await ask)[0] == 404
            assert world.engine.calls == 0

    asyncio.run(converse())


@pytest.mark.parametrize("path", BODIES)
def test_text_that_fits_no_context_is_refused_without_encoding_it(
    renderer_and_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE], context_tokens=5000) as world:
            held = HeldRenderer(monkeypatch, renderer_and_tokenizer[0])
            held.release()
            most = sessions.CHARACTERS_PER_TOKEN * (1 << 12)
            field = "input" if path == "/responses" else "messages"
            huge = {**BODIES[path], field: [{"role": "user", "content": "x" * most}]}
            status, answer = await world.post(path, huge)
            assert (status, held.rendered) == (400, 0)
            assert re.search("maximum context length|too long: 4097 tokens > 4096", json.dumps(answer))
            assert (await world.post(path, {**huge, field: BEGIN[1:]}))[0] == 200

    asyncio.run(converse())


def test_count_of_long_text_leaves_no_error_behind(renderer_and_tokenizer: Any) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE], context_tokens=5000) as world:
            huge = {"messages": [{"role": "user", "content": "x" * 200_000}]}
            assert (await world.post("/messages/count_tokens", huge))[0] == 400
            assert world.session.error is None

    asyncio.run(converse())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": BEGIN[1:] * (sessions.MESSAGES_MAX + 1)}),
        ("/messages/count_tokens", {"messages": BEGIN[1:] * (sessions.MESSAGES_MAX + 1)}),
        ("/responses", {"input": BEGIN[1:] * (sessions.MESSAGES_MAX + 1)}),
        ("/chat/completions", {"messages": BEGIN, "metadata": [[]] * (fields._NODES_MAX + 1)}),
        ("/chat/completions", {"messages": [{"role": "user", "content": [{}] * (fields._NODES_MAX + 1)}]}),
        ("/responses", {"input": [{}] * (fields._NODES_MAX + 1)}),
    ],
    ids=["messages", "counted messages", "response items", "metadata", "content parts", "input items"],
)
def test_request_of_too_many_parts_is_refused(renderer_and_tokenizer: Any, path: str, body: Any) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            status, answer = await world.post(path, json.dumps(body, separators=(",", ":")).encode())
            assert (status, world.engine.calls) == (400, 0)
            assert "more than" in answer["error"]["message"]
            assert (await world.chat_completion(BEGIN))[0] == 200

    asyncio.run(converse())


def test_requests_beyond_the_limit_of_a_session_are_told_to_retry(
    renderer_and_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REQUESTS_MAX", 2)

    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE, DONE, DONE]) as world:
            world.engine.open.clear()
            texts = [[{"role": "user", "content": text}] for text in ("one", "two", "three")]
            first = [asyncio.create_task(world.chat_completion(text, stream=True)) for text in texts[:2]]
            await world.engine.reached.acquire()
            await world.engine.reached.acquire()
            async with world.http.post(
                f"{world.url}/chat/completions", json={"messages": texts[2]}
            ) as response:
                assert response.status == 429
                assert (await response.json())["error"]["code"] == "too_many_requests"
            world.engine.open.set()
            assert {status for status, _ in await asyncio.gather(*first)} == {200}
            assert (await world.chat_completion(texts[2]))[0] == 200

    asyncio.run(converse())


def test_health_needs_no_key(renderer_and_tokenizer: Any) -> None:
    async def converse() -> None:
        async with open_world(renderer_and_tokenizer, [DONE]) as world, aiohttp.ClientSession() as anyone:
            async with anyone.get(f"{world.gateway.url}/healthz") as response:
                assert response.status == 200
            async with anyone.get(f"{world.gateway.url}/v1/models") as response:
                assert response.status == 401

    asyncio.run(converse())
