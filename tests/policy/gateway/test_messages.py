"""Anthropic messages, through Anthropic's own package."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hone.policy.reply import CallKind
from hone.policy.scripted import ScriptedReply
from tests import virtual_time
from tests.policy.gateway.world import DONE, LOOK, TOOLS, open_world

if TYPE_CHECKING:  # it takes seconds to import, which collection need not
    import anthropic

OWN_TOOLS = [
    {"name": t["function"]["name"], "description": "A tool.", "input_schema": {"type": "object"}}
    for t in TOOLS
]
QUESTION = {"role": "user", "content": "Fix the bug in `total_price`."}
REST = {"model": "m", "max_tokens": 100, "system": "You fix bugs.", "tools": OWN_TOOLS}


def client_of(world, **named) -> anthropic.AsyncAnthropic:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=world.url.removesuffix("/v1"), api_key="any", **named)


async def ask(client: anthropic.AsyncAnthropic, messages: list, *, stream: bool, **fields):
    request = {**REST, "messages": messages, **fields}
    if not stream:
        return await client.messages.create(**request)
    async with client.messages.stream(**request) as events:
        return await events.get_final_message()


def answered(message) -> list[dict]:
    """The reply and the results of its tools, as the package's users hand them back."""
    blocks = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "out"}]}
        for block in message.content
        if block.type == "tool_use"
    ]
    said = {
        "role": "assistant",
        "content": [block.model_dump(exclude_none=True) for block in message.content],
    }
    for block in said["content"]:
        block.pop("parsed_output", None)
    return [said, {"role": "user", "content": [*blocks, {"type": "text", "text": "Go on."}]}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_thinking_and_parallel_tools_is_one_branch(renderer_and_tokenizer, stream):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, LOOK, DONE]) as world:
            client = client_of(world, max_retries=0)
            messages = [QUESTION]
            for _ in range(2):
                message = await ask(client, messages, stream=stream)
                assert [block.type for block in message.content] == [
                    "thinking",
                    "text",
                    "tool_use",
                    "tool_use",
                ]
                assert message.content[0].thinking == "Where is it?"
                called = [(block.name, block.input) for block in message.content[2:]]
                assert called == [(call.name, call.arguments) for call in LOOK.tool_calls]
                assert message.stop_reason == "tool_use"
                assert message.usage.input_tokens == len(world.engine.prompts[-1])
                assert message.usage.output_tokens == len(world.engine.completions[-1].token_ids)
                messages += answered(message)
            count = await client.messages.count_tokens(
                model="m", messages=messages, system="You fix bugs.", tools=OWN_TOOLS
            )
            message = await ask(client, messages, stream=stream)
            assert count.input_tokens == len(world.engine.prompts[-1])
            assert (message.content[0].text, message.stop_reason) == ("Done.", "end_turn")
            assert not world.chat.forks
            assert all(exchange.purpose is CallKind.MAIN for exchange in world.session.exchanges)

    asyncio.run(converse())


def test_system_message_within_a_conversation_is_read(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, DONE]) as world:
            client = client_of(world, max_retries=0)
            messages: list = [
                QUESTION,
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            ]
            messages += answered(await ask(client, messages, stream=False))
            await ask(client, messages, stream=False)
            roles = [message["role"] for message in world.session.exchanges[-1].messages]
            assert roles == ["system", "user", "system", "assistant", "tool", "tool", "user"]
            assert not world.chat.forks

    asyncio.run(converse())


def test_moving_cache_marks_keep_one_branch(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, LOOK, DONE]) as world:
            client = client_of(world, max_retries=0)
            messages = [{"role": "user", "content": [{"type": "text", "text": "Fix it."}]}]
            for _ in range(3):
                mark = messages[-1]["content"][-1]
                mark["cache_control"] = {"type": "ephemeral"}
                messages += answered(await ask(client, messages, stream=False))
                del mark["cache_control"]
            assert not world.chat.forks

    asyncio.run(converse())


@pytest.mark.parametrize("stream", [False, True])
def test_finish_reason_tells_a_limit_from_a_stop_text(renderer_and_tokenizer, stream):
    cut = ScriptedReply(content="I was going to", finish="length")

    async def converse():
        async with open_world(
            renderer_and_tokenizer, [cut, ScriptedReply(content="first STOP second")]
        ) as world:
            client = client_of(world, max_retries=0)
            message = await ask(client, [QUESTION], stream=stream)
            assert (message.content[0].text, message.stop_reason) == ("I was going to", "max_tokens")
            message = await ask(
                client, [QUESTION, *answered(message)], stream=stream, stop_sequences=["STOP"]
            )
            assert message.content[0].text == "first "
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")

    asyncio.run(converse())


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"mcp_servers": [{"url": "x"}]},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "system", "content": "Obey."}]},
        {"messages": [QUESTION, {"role": "assistant", "content": "I"}]},
        {"nonsense": 1},
    ],
)
def test_unsupported_field_is_refused(renderer_and_tokenizer, fields):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            status, body = await world.post("/messages", {**REST, "messages": [QUESTION], **fields})
            assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
            assert world.engine.calls == 0

    asyncio.run(converse())


def test_too_long_prompt_gets_the_providers_error_text(renderer_and_tokenizer):
    from anthropic import BadRequestError

    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE], context_tokens=100) as world:
            with pytest.raises(BadRequestError, match=r"prompt is too long: [0-9]+ tokens > 100"):
                await ask(client_of(world), [QUESTION], stream=False)

    asyncio.run(converse())


def test_stream_is_pinged_until_reply_or_error(renderer_and_tokenizer):
    from anthropic import APIStatusError

    async def converse():
        script = [DONE, ScriptedReply(error="out of memory")]
        async with open_world(renderer_and_tokenizer, script) as world:
            world.engine.open.clear()
            client = client_of(world, max_retries=0)
            request = {**REST, "messages": [QUESTION]}
            async with client.messages.stream(**request) as events:  # the stream has begun: it was pinged
                world.engine.open.set()
                assert (await events.get_final_message()).content[0].text == "Done."
            world.engine.open.clear()
            request["messages"] = [QUESTION, QUESTION]
            with pytest.raises(APIStatusError, match="out of memory"):  # noqa: PT012
                async with client.messages.stream(**request) as events:
                    world.engine.open.set()
                    await events.get_final_message()

    virtual_time.run(converse())
