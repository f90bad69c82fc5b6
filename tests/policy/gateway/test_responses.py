"""OpenAI responses, through OpenAI's own package."""

from __future__ import annotations

import asyncio

import openai
import pytest

from hone.policy.scripted import ScriptedReply
from tests.policy.gateway.world import DONE, LOOK, TOOLS, open_world

OWN_TOOLS = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
REST = {"model": "m", "instructions": "You fix bugs.", "tools": OWN_TOOLS}


def client_of(world) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)


async def ask(client: openai.AsyncOpenAI, given, *, stream: bool, **fields):
    request = {**REST, "input": given, **fields}
    if not stream:
        return await client.responses.create(**request)
    async with client.responses.stream(**request) as events:
        return await events.get_final_response()


def outputs(response) -> list[dict]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "out"}
        for item in response.output
        if item.type == "function_call"
    ]


def handed_back(response) -> list[dict]:
    items = [item.model_dump(exclude_none=True) for item in response.output]
    return [{k: v for k, v in item.items() if k != "parsed_arguments"} for item in items]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_named_and_sent_histories_give_one_branch(renderer_and_tokenizer, stream, by_id):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, LOOK, DONE]) as world:
            client = client_of(world)
            given, fields = [{"role": "user", "content": "Fix it."}], {}
            for _ in range(2):
                response = await ask(client, given, stream=stream, **fields)
                kinds = [item.type for item in response.output]
                assert kinds == ["reasoning", "message", "function_call", "function_call"]
                assert response.output[0].content[0].text == "Where is it?"
                assert response.usage.input_tokens == len(world.engine.prompts[-1])
                if by_id:
                    given, fields = outputs(response), {"previous_response_id": response.id}
                else:
                    given = [*given, *handed_back(response), *outputs(response)]
            response = await ask(client, given, stream=stream, **fields)
            assert (response.output_text, response.status) == ("Done.", "completed")
            assert not world.chat.forks

    asyncio.run(converse())


def test_instructions_are_not_inherited_from_previous_response(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE, DONE]) as world:
            client = client_of(world)
            first = await ask(client, "Fix it.", stream=False)
            await ask(
                client, "Again.", stream=False, previous_response_id=first.id, instructions="You write poems."
            )
            roles = [(m["role"], m["content"]) for m in world.session.exchanges[1].messages]
            assert roles == [
                ("system", "You write poems."),
                ("user", "Fix it."),
                ("assistant", "Done."),
                ("user", "Again."),
            ]

    asyncio.run(converse())


def test_a_cut_reply_is_incomplete(renderer_and_tokenizer):
    async def converse():
        async with open_world(
            renderer_and_tokenizer, [ScriptedReply(content="I was", finish="length")]
        ) as world:
            events = [
                event
                async for event in await client_of(world).responses.create(
                    **REST, input="Fix it.", stream=True
                )
            ]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[0].type == "response.created"
            assert events[-1].type == "response.incomplete"
            assert events[-1].response.incomplete_details.reason == "max_output_tokens"

    asyncio.run(converse())


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [{"type": "local_shell"}]},
        {"text": {"format": {"type": "json_schema"}}},
        {"include": ["message.output_text.logprobs"]},
        {"background": True},
        {"truncation": "auto"},
        {"conversation": "conv_1"},
        {"previous_response_id": "resp_0_0_i"},
        {"previous_response_id": "nonsense"},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"input": []},
    ],
)
def test_unsupported_field_is_refused(renderer_and_tokenizer, fields):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            request = {**REST, "input": "Fix it.", **fields}
            if "input" in fields:
                request["instructions"] = None
            status, body = await world.post("/responses", request)
            assert (status, body["error"]["type"]) == (400, "invalid_request_error")
            assert world.engine.calls == 0

    asyncio.run(converse())
