"""The reply that an agent receives, and how it is recognised in later messages."""

from __future__ import annotations

import asyncio
import json

import pytest

from hone.policy.chat import Chat, Fork
from hone.policy.engine import Sampling
from hone.policy.errors import PolicyError
from tests.policy.conversations import TOOL as BASH
from tests.policy.scripted_engine import ScriptedEngine

TOOL = {**BASH, "name": "run"}


def chat_with(engine, renderer, **sampling) -> Chat:
    return Chat(engine, renderer, Sampling(**sampling), session="s")


def begin(text: str = "Fix the bug.") -> list[dict]:
    return [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": text}]


def encoded(tokenizer, renderer, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), renderer.get_stop_token_ids()[0]]


def tool_call(command: str) -> str:
    return f'<tool_call>\n{{"name": "run", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


def test_parallel_tool_calls_are_returned_in_order(tokenizer, renderer):
    text = f"Look.\n{tool_call('ls')}\n{tool_call('cat x')}"
    engine = ScriptedEngine(lambda _: encoded(tokenizer, renderer, text))
    chat = chat_with(engine, renderer)

    async def converse():
        reply = await chat.reply(begin(), tools=[TOOL])
        said = {"role": "assistant", "content": reply.content, "tool_calls": list(reply.tool_calls)}
        results = [{"role": "tool", "content": "x", "tool_call_id": c["id"]} for c in reply.tool_calls]
        await chat.reply([*begin(), said, *results], tools=[TOOL])
        return reply

    reply = asyncio.run(converse())
    arguments = [json.loads(c["function"]["arguments"]) for c in reply.tool_calls]
    assert arguments == [{"command": "ls"}, {"command": "cat x"}]
    assert len({c["id"] for c in reply.tool_calls}) == 2
    assert reply.content.strip() == "Look."
    assert not reply.malformed
    assert not chat.forks
    assert '"name": "run"' in tokenizer.decode(engine.prompts[0])  # the tools are shown


@pytest.mark.parametrize(
    "damaged",
    [
        '<tool_call>\n{"name": "run", "arguments": {"com\n</tool_call>',
        '<tool_call>\n{"name": "run"',
        "<tool_call>",
    ],
)
def test_malformed_tool_call_is_returned_verbatim(tokenizer, renderer, damaged):
    texts = [f"{tool_call('ls')}\n{damaged}", "ok"]
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, texts[i]))
    chat = chat_with(engine, renderer)

    async def converse():
        reply = await chat.reply(begin(), tools=[TOOL])
        said = {"role": "assistant", "content": reply.content, "tool_calls": list(reply.tool_calls)}
        result = {"role": "tool", "content": "x", "tool_call_id": reply.tool_calls[0]["id"]}
        await chat.reply([*begin(), said, result], tools=[TOOL])
        return reply

    reply = asyncio.run(converse())
    assert len(reply.tool_calls) == 1
    assert [text in damaged for text in reply.malformed] == [True]
    assert not chat.forks  # the damaged call stays in the context, as it was sampled


@pytest.mark.parametrize("depth", [900, 3000])
def test_reply_nested_too_deeply_is_a_malformed_call(tokenizer, renderer, depth):
    nested = f'{{"name": "run", "arguments": {{"command": {"[" * depth}{"]" * depth}}}}}'
    texts = [f"<tool_call>\n{nested}\n</tool_call>", "ok"]
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, texts[i]))
    chat = chat_with(engine, renderer)

    async def converse():
        reply = await chat.reply(begin(), tools=[TOOL])
        said = {"role": "assistant", "content": reply.content, "tool_calls": list(reply.tool_calls)}
        answer = {"role": "user", "content": "That cannot be read."}
        await chat.reply([*begin(), said, answer], tools=[TOOL])
        return reply

    reply = asyncio.run(converse())
    assert len(reply.tool_calls) + len(reply.malformed) == 1
    assert not chat.forks


def test_reasoning_is_separate_from_the_text(tokenizer, renderer):
    text = "<think>\nbecause\n</think>\n\nDone."
    chat = chat_with(ScriptedEngine(lambda _: encoded(tokenizer, renderer, text)), renderer)
    reply = asyncio.run(chat.reply(begin()))
    assert (reply.reasoning or "").strip() == "because"
    assert reply.content == "Done."


def parts(said: dict) -> dict:
    return {**said, "content": [{"type": "text", "text": said["content"]}]}


def without(name: str):
    return lambda said: {key: value for key, value in said.items() if key != name}


def with_arguments(change):
    def form(said: dict) -> dict:
        calls = json.loads(json.dumps(said["tool_calls"]))
        for item in calls:
            item["function"]["arguments"] = change(json.loads(item["function"]["arguments"]))
        return {**said, "tool_calls": calls}

    return form


def with_calls(**changes):
    return lambda said: {**said, "tool_calls": [{**c, **changes} for c in said["tool_calls"]]}


@pytest.mark.parametrize(
    "form",
    [
        lambda said: said,
        parts,
        without("reasoning_content"),
        lambda said: {**said, "reasoning": said["reasoning_content"], "reasoning_content": None},
        lambda said: {**said, "reasoning_content": said["reasoning_content"].strip()},
        lambda said: {**said, "content": f"\n{said['content']} \n", "refusal": None},
        with_arguments(lambda arguments: arguments),
        with_arguments(lambda arguments: json.dumps(arguments, indent=2)),
        with_calls(id="toolu_1", index=0),
        with_calls(id=None),
    ],
)
def test_reply_is_recognised_in_every_client_form(tokenizer, renderer, form):
    text = f"<think>\nbecause\n</think>\n\nLook. \n{tool_call('ls')}"
    engine = ScriptedEngine(lambda _: encoded(tokenizer, renderer, text))
    chat = chat_with(engine, renderer)

    async def converse():
        messages = begin()
        for _ in range(3):
            reply = await chat.reply(messages, tools=[TOOL])
            said = {
                "role": "assistant",
                "content": reply.content,
                "reasoning_content": reply.reasoning,
                "tool_calls": list(reply.tool_calls),
            }
            result = {"role": "tool", "content": "x", "tool_call_id": reply.tool_calls[0]["id"]}
            messages = json.loads(json.dumps([*messages, form(said), result]))

    asyncio.run(converse())
    assert not chat.forks
    assert len(list(chat.tree.branches())) == 1


@pytest.mark.parametrize(
    "edit",
    [
        {"content": "Look!"},
        {"reasoning_content": "why not"},
        {"tool_calls": [{"function": {"name": "run", "arguments": '{"command": "rm"}'}}]},
        {"tool_calls": None},
    ],
)
def test_changed_reply_is_not_recognised(tokenizer, renderer, edit):
    text = f"<think>\nbecause\n</think>\n\nLook.\n{tool_call('ls')}"
    engine = ScriptedEngine(lambda _: encoded(tokenizer, renderer, text))
    chat = chat_with(engine, renderer)

    async def converse():
        reply = await chat.reply(begin())
        said = {"role": "assistant", "content": reply.content, "tool_calls": list(reply.tool_calls)}
        await chat.reply([*begin(), {**said, **edit}, {"role": "user", "content": "x"}])

    asyncio.run(converse())
    assert chat.forks == {Fork.REWRITTEN: 1}


def test_empty_reasoning_means_the_reply_without_reasoning(tokenizer, renderer):
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, f"<think>\nwhy {i}\n</think>\n\nsaid {i}"))
    chat = chat_with(engine, renderer)

    async def converse():
        messages = begin()
        for i in range(4):
            reply = await chat.reply(messages)
            for said in messages[2::2]:
                said["reasoning_content"] = ""
            said = {"role": "assistant", "content": reply.content}
            messages = [*messages, said, {"role": "user", "content": f"output {i}"}]

    asyncio.run(converse())
    last = tokenizer.decode(engine.prompts[-1])
    assert [f"why {i}" in last for i in range(3)] == [False, False, True]  # only the latest kept its own
    assert [f"said {i}" in last for i in range(3)] == [True, True, True]
    kept = " ".join(map(str, engine.completions[2].token_ids))
    assert kept in " ".join(map(str, engine.prompts[3]))  # as it was sampled
    assert [call.fork for call in chat.calls] == [None, None, Fork.THINKING, Fork.THINKING]
    assert chat.forks == {Fork.THINKING: 2}


def test_empty_reasoning_matches_a_reply_without_any(tokenizer, renderer):
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, f"said {i}"))
    chat = chat_with(engine, renderer)

    async def converse():
        said = {"role": "assistant", "content": (await chat.reply(begin())).content, "reasoning_content": ""}
        await chat.reply([*begin(), said, {"role": "user", "content": "x"}])

    asyncio.run(converse())
    assert not chat.forks


def test_measure_equals_the_prompt_and_changes_nothing(tokenizer, renderer):
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, f"said {i}"))
    chat = chat_with(engine, renderer)

    async def converse():
        messages = begin()
        for i in range(4):
            size, nodes = chat.measure(messages, tools=[TOOL]), len(chat.tree.nodes)
            assert chat.measure(messages) < size
            assert len(chat.tree.nodes) == nodes
            reply = await chat.reply(messages, tools=[TOOL])
            assert size == reply.prompt_tokens == len(engine.prompts[i])
            messages = [
                *messages,
                {"role": "assistant", "content": reply.content},
                {"role": "user", "content": "x"},
            ]

    asyncio.run(converse())
    assert not chat.forks


def test_message_changed_in_place_is_a_new_message(tokenizer, renderer):
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, f"said {i}"))
    chat = chat_with(engine, renderer)
    messages = begin()

    async def converse():
        messages.append({"role": "assistant", "content": (await chat.reply(messages)).content})
        messages.append({"role": "user", "content": "x"})
        await chat.reply(messages)
        messages[1]["content"] = "other words"
        await chat.reply(messages)

    asyncio.run(converse())
    assert "other words" in tokenizer.decode(engine.prompts[-1])
    assert chat.forks == {Fork.REWRITTEN: 1}


def test_non_text_content_is_refused(renderer):
    chat = chat_with(ScriptedEngine(lambda _: [5]), renderer)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    with pytest.raises(PolicyError, match="'image_url'"):
        asyncio.run(chat.reply([image]))


def twice(tokenizer, renderer, texts: list[str], form) -> list[int]:
    """Return the prompt after two equal requests, continued from `form(replies)`."""
    engine = ScriptedEngine(lambda i: encoded(tokenizer, renderer, texts[i]))
    chat = chat_with(engine, renderer)

    async def converse():
        one = await chat.reply(begin(), tools=[TOOL])
        said = {"role": "assistant", "content": one.content, "tool_calls": list(one.tool_calls)}
        chat.measure([*begin(), said, {"role": "user", "content": "x"}], tools=[TOOL])
        two = await chat.reply(begin(), tools=[TOOL])
        await chat.reply([*begin(), form([one, two]), {"role": "user", "content": "x"}], tools=[TOOL])

    asyncio.run(converse())
    return list(map(int, engine.prompts[2]))


def test_latest_of_equal_replies_matches(tokenizer, renderer):
    texts = [f"<think>\nwhy {i}\n</think>\n\nsaid" for i in range(3)]
    prompt = twice(
        tokenizer, renderer, texts, lambda r: {"role": "assistant", "content": r[1].content, "tool_calls": []}
    )
    assert "why 1" in tokenizer.decode(prompt)


@pytest.mark.parametrize("chosen", [0, 1])
def test_call_ids_choose_among_equal_replies(tokenizer, renderer, chosen):
    texts = [f"<think>\nwhy {i}\n</think>\n\n{tool_call('ls')}" for i in range(3)]

    def form(replies):
        reply = replies[chosen]
        return {"role": "assistant", "content": reply.content, "tool_calls": list(reply.tool_calls)}

    assert f"why {chosen}" in tokenizer.decode(twice(tokenizer, renderer, texts, form))
