"""An OpenAI-compatible endpoint as a chat: text and tool calls without token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from hone.policy.engine import ContextOverflow, EngineError, Sampling
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.openai import OpenAIChat
from hone.policy.reply import CallKind
from hone.policy.settings import OpenAIEngineSettings
from tests.virtual_time import run as run_virtual

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
TOOL = {"name": "bash", "description": "Runs a command.", "parameters": {"type": "object", "properties": {}}}
SAMPLING = Sampling(max_tokens=50, seed=2**40 + 5)
ASKED = [{"role": "user", "content": "Fix it."}]


def completion(**message: Any) -> web.Response:
    return web.json_response(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3},
        }
    )


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


@asynccontextmanager
async def endpoint(
    answers: list[web.Response], sampling: Sampling = SAMPLING, **settings: Any
) -> AsyncGenerator[tuple[OpenAIChat, list[Any]]]:
    """Yield a chat with an endpoint that gives `answers` in turn, and the requests it received."""
    sent: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        sent.append((request.headers.get("Authorization"), await request.json()))
        return answers.pop(0)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        engine = OpenAIEngineSettings(
            kind="openai",
            urls=(url,),
            model_name="big",
            context_tokens=1000,
            request_timeout_s=30,
            **settings,
        )
        async with new_session() as session:
            yield OpenAIChat(Http(session, url, key="k1"), engine, sampling), sent
    finally:
        await runner.cleanup()


def test_reply_has_text_and_tool_calls_but_no_tokens():
    async def run():
        async with endpoint([completion(content=None, tool_calls=[CALL], reasoning_content="hm")]) as (
            chat,
            sent,
        ):
            return chat, await chat.reply(ASKED, tools=[TOOL], purpose=CallKind.AUXILIARY), sent

    chat, reply, [(key, body)] = run_virtual(run())
    assert (reply.content, reply.reasoning, reply.tool_calls, reply.node) == ("", "hm", (CALL,), None)
    assert (reply.prompt_tokens, reply.sampled_tokens, reply.truncated) == (11, 3, False)
    assert chat.tree.nodes == []
    assert [(call.node, call.purpose, call.sampled_tokens) for call in chat.calls] == [
        (None, CallKind.AUXILIARY, 3)
    ]
    assert chat.max_prompt_tokens == 950
    assert chat.measure(ASKED) > 0
    assert key == "Bearer k1"
    assert body["tools"] == [{"type": "function", "function": TOOL}]
    assert (body["model"], body["max_tokens"], body["messages"]) == ("big", 50, ASKED)
    assert 0 <= body["seed"] < 2**31


def test_busy_endpoint_is_retried_and_a_broken_one_is_not():
    async def run():
        answers = [error(429, "slow down"), error(503, "down"), completion(content="a")]
        async with endpoint(answers) as (chat, sent):
            reply = await chat.reply(ASKED)
            count = len(sent)
        async with endpoint([error(503, "down"), error(503, "down")], retries=1) as (chat, _):
            with pytest.raises(EngineError, match="HTTP 503: down"):
                await chat.reply(ASKED)
        async with endpoint([error(401, "wrong key")]) as (chat, _):
            with pytest.raises(EngineError, match="HTTP 401: wrong key"):
                await chat.reply(ASKED)
        return reply.content, count

    assert run_virtual(run()) == ("a", 3)


def test_too_long_prompt_is_a_context_overflow():
    async def run():
        message = "This model's maximum context length is 1000 tokens."
        async with endpoint([error(400, message)]) as (chat, _):
            with pytest.raises(ContextOverflow):
                await chat.reply(ASKED)

    run_virtual(run())


def test_invalid_chat_completion_is_refused():
    async def run():
        async with endpoint([web.json_response({"object": "list", "data": []})]) as (chat, _):
            with pytest.raises(EngineError, match=r"no chat completion.*engine.urls, which ends in /v1"):
                await chat.reply(ASKED)
        with pytest.raises(EngineError, match="top-k"):
            async with endpoint([], Sampling(top_k=5)):
                pass

    run_virtual(run())


def test_reply_without_tokens_is_an_engine_error():
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    empty = {"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 0}}

    async def run():
        async with endpoint([web.json_response(empty)]) as (chat, _):
            with pytest.raises(EngineError, match="returned no tokens: check that big is a language model"):
                await chat.reply(list(ASKED))

    run_virtual(run())
