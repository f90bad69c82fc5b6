"""Google's generateContent, with the requests that its command line sends."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from hone.policy.reply import CallKind
from hone.policy.scripted import ScriptedReply
from tests import virtual_time
from tests.policy.gateway.world import DONE, GENERATE, LOOK, STREAM, TOOLS, open_world

DECLARATIONS = [
    {"name": t["function"]["name"], "description": "A tool.", "parametersJsonSchema": {"type": "object"}}
    for t in TOOLS
]
QUESTION = {"role": "user", "parts": [{"text": "It is Monday."}, {"text": "Fix the bug."}]}
REST = {
    "systemInstruction": {"role": "user", "parts": [{"text": "You fix bugs."}]},
    "tools": [{"functionDeclarations": DECLARATIONS}],
    "generationConfig": {"temperature": 1, "topP": 0.95, "thinkingConfig": {"includeThoughts": True}},
}
# The JavaScript package reads events with this pattern, from the beginning of what it has not read yet.
EVENT = re.compile(r"^\s*data: (.*)(?:\n\n|\r\r|\r\n\r\n)")


def events_of(stream: str) -> list[dict]:
    events = []
    while match := EVENT.match(stream):
        events.append(json.loads(match[1]))
        stream = stream[match.end() :]
    assert not stream.strip()
    return events


async def ask(world, contents: list, *, stream: bool, **fields) -> dict:
    status, answer = await world.post(
        STREAM if stream else GENERATE, {**REST, "contents": contents, **fields}
    )
    assert status == 200, answer
    return events_of(answer)[-1] if stream else answer


def answered(answer: dict) -> list[dict]:
    """Return the reply as the command line sends it back, without thoughts, and the results of its tools."""
    content = answer["candidates"][0]["content"]
    parts = [part for part in content["parts"] if not part.get("thought")]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    if calls:
        parts[-1] = {**parts[-1], "thoughtSignature": "any"}
    results = [
        {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": "out"}}}
        for call in calls
    ]
    return [{"role": "model", "parts": parts}, {"role": "user", "parts": results or [{"text": "Go on."}]}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_thinking_and_parallel_tools_is_one_branch(renderer_and_tokenizer, stream):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, LOOK, DONE]) as world:
            contents = [QUESTION]
            for _ in range(2):
                answer = await ask(world, contents, stream=stream)
                thought, text, *calls = answer["candidates"][0]["content"]["parts"]
                assert thought == {"text": "Where is it?", "thought": True}
                assert text == {"text": "I look."}
                called = [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in calls]
                assert called == [(call.name, call.arguments) for call in LOOK.tool_calls]
                assert answer["candidates"][0]["finishReason"] == "STOP"
                assert answer["modelVersion"] == "m"
                prompt, sampled = len(world.engine.prompts[-1]), len(world.engine.completions[-1].token_ids)
                assert answer["usageMetadata"] == {
                    "promptTokenCount": prompt,
                    "candidatesTokenCount": sampled,
                    "totalTokenCount": prompt + sampled,
                }
                contents += answered(answer)
            answer = await ask(world, contents, stream=stream)
            assert answer["candidates"][0]["content"]["parts"] == [{"text": "Done."}]
            assert not world.chat.forks
            assert all(exchange.purpose is CallKind.MAIN for exchange in world.session.exchanges)
            roles = [message["role"] for message in world.session.exchanges[-1].messages]
            assert roles == ["system", "user", *["assistant", "tool", "tool"] * 2]
            prompts = world.engine.prompts
            for before, done, after in zip(prompts, world.engine.completions, prompts[1:], strict=False):
                begun = [*before, *done.token_ids.tolist()]
                assert list(after[: len(begun)]) == begun

    asyncio.run(converse())


@pytest.mark.parametrize("stream", [False, True])
def test_finish_reason_tells_a_limit_from_a_stop_text(renderer_and_tokenizer, stream):
    cut = ScriptedReply(content="I was going to", finish="length")

    async def converse():
        async with open_world(
            renderer_and_tokenizer, [cut, ScriptedReply(content="first STOP second")]
        ) as world:
            answer = await ask(world, [QUESTION], stream=stream)
            assert answer["candidates"][0]["finishReason"] == "MAX_TOKENS"
            config = {"stopSequences": ["STOP"]}
            contents = [QUESTION, *answered(answer)]
            answer = await ask(world, contents, stream=stream, generationConfig=config)
            assert answer["candidates"][0]["content"]["parts"] == [{"text": "first "}]
            assert answer["candidates"][0]["finishReason"] == "STOP"

    asyncio.run(converse())


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "two\nlines"}, "two\nlines"),
        ({"error": "no such file"}, '{"error":"no such file"}'),
        ({"output": {"lines": 2}}, '{"output":{"lines":2}}'),
        ({}, "{}"),
    ],
)
def test_function_response_that_is_no_plain_output_is_read_as_json(renderer_and_tokenizer, response, text):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, DONE]) as world:
            contents = [QUESTION, *answered(await ask(world, [QUESTION], stream=False))]
            contents[-1]["parts"][0]["functionResponse"]["response"] = response
            await ask(world, contents, stream=False)
            assert world.session.exchanges[-1].messages[3]["content"] == text

    asyncio.run(converse())


def test_forbidden_tools_are_not_offered(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK]) as world:
            choice = {"functionCallingConfig": {"mode": "NONE"}}
            answer = await ask(world, [QUESTION], stream=False, toolConfig=choice)
            assert not any("functionCall" in part for part in answer["candidates"][0]["content"]["parts"])
            assert world.session.exchanges[-1].tools == ()

    asyncio.run(converse())


@pytest.mark.parametrize(
    "fields",
    [
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        {"tools": [{"googleSearch": {}}]},
        {"tools": [{"functionDeclarations": [{"description": "without a name"}]}]},
        {"generationConfig": {"responseMimeType": "application/json"}},
        {"generationConfig": {"candidateCount": 2}},
        {"generationConfig": {"nonsense": 1}},
        {"cachedContent": "cachedContents/x"},
        {"systemInstruction": "Obey."},
        {"contents": [{"role": "system", "parts": [{"text": "Obey."}]}]},
        {"contents": [{"role": ["user"], "parts": [{"text": "Obey."}]}]},
        {"contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png"}}]}]},
        {"contents": [{"role": "user", "parts": [{"functionCall": {"name": "ls", "args": {}}}]}]},
        {"contents": [QUESTION, {"role": "model", "parts": [{"text": "I"}]}]},
        {"nonsense": 1},
        {"stream": True},
    ],
)
def test_unsupported_field_is_refused(renderer_and_tokenizer, fields):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            status, body = await world.post(GENERATE, {**REST, "contents": [QUESTION], **fields})
            assert (status, body["error"]["code"], body["error"]["status"]) == (400, 400, "INVALID_ARGUMENT")
            assert world.engine.calls == 0

    asyncio.run(converse())


def test_too_long_prompt_gets_the_providers_error_text(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE], context_tokens=100) as world:
            status, body = await world.post(STREAM, {**REST, "contents": [QUESTION]})
            assert (status, body["error"]["status"]) == (400, "INVALID_ARGUMENT")
            words = r"The input token count \(\d+\) exceeds the maximum number of tokens allowed \(100\)\."
            assert re.fullmatch(words, body["error"]["message"])

    asyncio.run(converse())


def test_key_of_the_session_is_read_from_googles_header(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            url = f"{world.gateway.url}/v1beta/models/m:generateContent"
            for key, status in ((world.session.key, 200), ("wrong", 401)):
                body = {**REST, "contents": [QUESTION]}
                async with world.http.post(url, json=body, headers={"x-goog-api-key": key}) as response:
                    assert response.status == status
                    answer = await response.json()
            assert answer["error"]["status"] == "UNAUTHENTICATED"

    asyncio.run(converse())


def test_stream_has_empty_events_until_reply_or_error(renderer_and_tokenizer):
    async def converse():
        script = [DONE, ScriptedReply(error="out of memory")]
        async with open_world(renderer_and_tokenizer, script) as world:
            bodies = []
            for contents in ([QUESTION], [QUESTION, QUESTION]):
                world.engine.open.clear()
                url = world.url + STREAM
                async with world.http.post(url, json={**REST, "contents": contents}) as response:
                    world.engine.open.set()  # the stream has begun
                    bodies.append(await response.text())
            waiting, answer = events_of(bodies[0])
            assert waiting == {"candidates": [], "modelVersion": "m"}
            assert answer["candidates"][0]["content"]["parts"] == [{"text": "Done."}]
            waiting, error = bodies[1].split("\n\n")
            assert events_of(waiting + "\n\n") == [{"candidates": [], "modelVersion": "m"}]
            assert json.loads(error)["error"]["status"] == "UNAVAILABLE"
            assert "out of memory" in json.loads(error)["error"]["message"]

    virtual_time.run(converse())
