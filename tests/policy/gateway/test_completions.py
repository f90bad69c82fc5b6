"""OpenAI chat completions, through OpenAI's own package."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from hone.policy.scripted import ScriptedReply
from tests.policy.gateway.world import BEGIN, DONE, LOOK, TOOLS, open_world, results


async def ask(client: openai.AsyncOpenAI, messages: list, *, stream: bool, **fields):
    """The message, the reason why it ends, and the usage."""
    if not stream:
        reply = await client.chat.completions.create(model="m", messages=messages, **fields)
        return reply.choices[0].message, reply.choices[0].finish_reason, reply.usage
    async with client.chat.completions.stream(
        model="m", messages=messages, stream_options={"include_usage": True}, **fields
    ) as events:
        try:
            reply = await events.get_final_completion()
        except openai.LengthFinishReasonError as error:  # how this package says it
            reply = error.completion
    return reply.choices[0].message, reply.choices[0].finish_reason, reply.usage


def strict(tools: list) -> list:
    """As the package wants them for its accumulation of streams."""
    return [{**tool, "function": {**tool["function"], "strict": True}} for tool in tools]


def plain(message) -> dict:
    """The message as an agent keeps it."""
    said = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    return said


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_parallel_tool_calls_is_one_branch(renderer_and_tokenizer, stream):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, LOOK, DONE]) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)
            messages = list(BEGIN)
            for _ in range(2):
                message, finish, usage = await ask(client, messages, stream=stream, tools=strict(TOOLS))
                assert (message.content, message.reasoning_content) == ("I look.", "Where is it?")
                assert finish == "tool_calls"
                called = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
                assert called == [(call.name, call.arguments) for call in LOOK.tool_calls]
                completion = world.engine.completions[-1]
                assert usage.prompt_tokens == len(world.engine.prompts[-1])
                assert usage.completion_tokens == len(completion.token_ids)
                messages += [plain(message), *results(plain(message))]
            message, finish, _ = await ask(client, messages, stream=stream, tools=strict(TOOLS))
            assert (message.content, finish, message.tool_calls) == ("Done.", "stop", None)
            assert len({call["id"] for m in messages for call in m.get("tool_calls", [])}) == 4
            assert not world.chat.forks
            assert len(list(world.chat.tree.branches())) == 1

    asyncio.run(converse())


def test_the_synchronous_package_and_an_api_key_serve_as_well(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            base = f"{world.gateway.url}/v1"
            client = openai.OpenAI(base_url=base, api_key=world.session.key, max_retries=0)
            stream = await asyncio.to_thread(
                client.chat.completions.create, model="m", messages=BEGIN, stream=True
            )
            chunks = await asyncio.to_thread(list, stream)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Done."
            assert chunks[-1].choices[0].finish_reason == "stop"  # no usage, since no request wants it
            assert [model.id for model in await asyncio.to_thread(lambda: client.models.list().data)] == [
                "hone"
            ]

    asyncio.run(converse())


@pytest.mark.parametrize("stream", [False, True])
def test_finish_reason_tells_a_limit_from_a_stop_text(renderer_and_tokenizer, stream):
    cut = ScriptedReply(content="I was going to", finish="length")
    long = ScriptedReply(content="first\nSTOP second")

    async def converse():
        async with open_world(renderer_and_tokenizer, [cut, long, DONE]) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)
            message, finish, _ = await ask(client, BEGIN, stream=stream)
            assert (message.content, finish) == ("I was going to", "length")
            messages = [*BEGIN, plain(message), {"role": "user", "content": "Go on."}]
            message, finish, _ = await ask(client, messages, stream=stream, stop=["STOP", "nowhere"])
            assert (message.content, finish) == ("first\n", "stop")
            messages += [plain(message), {"role": "user", "content": "And?"}]
            await ask(client, messages, stream=stream)
            assert not world.chat.forks  # what was cut from view is still what the policy said

    asyncio.run(converse())


def test_malformed_tool_call_is_shown_as_text(renderer_and_tokenizer):
    broken = ScriptedReply(text='<think>\n\n</think>\n\nNow.\n<tool_call>\n{"name": "ls", "arg\n</tool_call>')

    async def converse():
        async with open_world(renderer_and_tokenizer, [broken, DONE]) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)
            message, finish, _ = await ask(client, BEGIN, stream=False, tools=TOOLS)
            assert finish == "stop"
            assert message.content.startswith("Now.")
            assert '{"name": "ls", "arg' in message.content
            messages = [*BEGIN, plain(message), {"role": "user", "content": "That was no call."}]
            await ask(client, messages, stream=False, tools=TOOLS)
            assert not world.chat.forks

    asyncio.run(converse())


def test_run_sampling_overrides_the_client(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)
            raw = await client.chat.completions.with_raw_response.create(
                model="m", messages=BEGIN, temperature=0.1, max_tokens=5, seed=7, n=1, user="me"
            )
            assert raw.headers["x-hone-overridden"] == "max_tokens, seed, temperature"
            assert raw.headers["x-hone-ignored"] == "n, user"
            assert (world.engine.sampling.temperature, world.engine.sampling.max_tokens) == (0.5, 1000)

    asyncio.run(converse())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [*BEGIN, {"role": "assistant", "content": "I"}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "I"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "I", "weight": 1}]}, "messages[0].weight"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_unsupported_field_is_refused_by_name(renderer_and_tokenizer, fields, param):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            status, body = await world.chat_completion(**{"messages": BEGIN, **fields})
            assert (status, body["error"]["param"]) == (400, param)
            assert body["error"]["type"] == "invalid_request_error"
            assert world.engine.calls == 0
            assert (await world.chat_completion(BEGIN))[0] == 200  # nothing of the refused one is left

    asyncio.run(converse())


def test_forbidden_tools_are_not_offered(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE, DONE]) as world:
            await world.chat_completion(BEGIN, tools=TOOLS, tool_choice="none")
            await world.chat_completion(BEGIN)
            assert world.session.exchanges[0].retries == 1  # it was the same call

    asyncio.run(converse())


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_prompt_gets_the_providers_error_text(renderer_and_tokenizer, stream):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE], context_tokens=300) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any")
            messages = [*BEGIN, {"role": "user", "content": "é" * 300}]
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(client, messages, stream=stream)
            assert caught.value.code == "context_length_exceeded"
            assert type(world.session.error).__name__ == "ContextOverflow"
            assert not world.session.over.is_set()
            await ask(client, BEGIN, stream=stream)  # the client has shortened its history
            assert world.session.error is None

    asyncio.run(converse())
