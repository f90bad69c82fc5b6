"""Chat and transcript: the tree holds exactly the engine's tokens, however history is rewritten."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.policy.chat import Chat, Fork, encode_conversation
from hone.policy.engine import ContextOverflow, EngineError, Sampling
from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from tests.examples import examples
from tests.policy.conversations import TOOL as BASH
from tests.policy.scripted_engine import ScriptedEngine

TOOL = {**BASH, "name": "run"}

WORDS = st.text(alphabet="ab_= \n`.<|>é0", max_size=12)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["next", "next", "next", "again", "rewind", "edit", "drop", "fresh"]),
        st.integers(0, 100),
        WORDS,
    ),
    min_size=1,
    max_size=9,
)
RENDERERS = ("qwen3", "default")
relaxed = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def renderers(tokenizer):
    return {name: make_renderer(tokenizer, name) for name in RENDERERS}


def chat_with(engine, renderer, **sampling) -> Chat:
    return Chat(engine, renderer, Sampling(**sampling), session="s")


def begin(text: str = "Fix the bug.") -> list[dict]:
    return [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": text}]


def rewrite(messages: list[dict], operation: str, number: int, text: str) -> list[dict]:
    """One thing an agent or a context policy may do to its history; the result ends with a user's message."""
    if operation == "next":
        return [*messages, {"role": "user", "content": text}]
    if operation == "fresh":
        return begin(text)
    messages = [dict(message) for message in messages]
    if operation == "edit":
        messages[number % len(messages)]["content"] = text
    elif operation == "drop" and len(messages) > 2:
        del messages[2 + number % (len(messages) - 2)]
    elif operation == "rewind":
        messages = messages[: 2 + number % max(1, len(messages) - 1)]
    while messages[-1]["role"] == "assistant":
        messages.pop()
    return messages


@relaxed
@given(operations=OPERATIONS, seed=st.integers(0, 2**32 - 1), name=st.sampled_from(RENDERERS))
def test_rewritten_history_never_loses_or_changes_a_token(tokenizer, renderers, operations, seed, name):
    rng = np.random.default_rng(seed)
    stop = renderers[name].get_stop_token_ids()[0]

    def answer(_call: int) -> list[int]:  # any tokens at all: markup, halves of characters, other encodings
        ids = rng.integers(3, len(tokenizer), rng.integers(1, 8)).tolist()
        return [*ids, stop] if rng.random() < 0.7 else ids

    engine = ScriptedEngine(answer)
    chat = chat_with(engine, renderers[name])
    nodes: list[int] = []

    async def converse() -> None:
        messages = begin()
        for operation, number, text in [("again", 0, ""), *operations]:
            messages = rewrite(messages, operation, number, text)
            reply = await chat.reply(messages)
            nodes.append(reply.node)
            messages = [*messages, {"role": "assistant", "content": reply.content}]

    asyncio.run(converse())
    assert len(nodes) == len(engine.prompts)
    for node, prompt, completion in zip(nodes, engine.prompts, engine.completions, strict=True):
        assert chat.tree.tokens(node).tolist() == prompt + completion.token_ids.tolist()
        assert np.array_equal(chat.tree.nodes[node].tokens, completion.token_ids)
        assert np.array_equal(chat.tree.nodes[node].logprobs, completion.logprobs)
        assert np.array_equal(chat.tree.nodes[node].version, completion.version)
    assert [i for i, node in enumerate(chat.tree.nodes) if node.sampled] == nodes
    assert chat.tree.sampled_tokens == sum(len(c.token_ids) for c in engine.completions)
    ends = {tuple(chat.tree.tokens(i)) for i, node in enumerate(chat.tree.nodes) if not node.sampled}
    assert len(ends) == sum(not node.sampled for node in chat.tree.nodes)  # no context appears twice
    assert len(list(chat.tree.branches())) <= 1 + sum(chat.forks.values())


@relaxed
@given(replies=st.lists(WORDS, min_size=1, max_size=5), name=st.sampled_from(RENDERERS))
def test_growing_conversation_equals_its_encoded_demonstration(tokenizer, renderers, replies, name):
    renderer = renderers[name]
    stop = renderer.get_stop_token_ids()[0]
    engine = ScriptedEngine(lambda i: [*tokenizer.encode(replies[i], add_special_tokens=False), stop])
    chat = chat_with(engine, renderer)
    demonstration = begin()

    async def converse() -> None:
        messages = begin()
        for i, text in enumerate(replies):
            reply = await chat.reply(messages)
            observation = {"role": "user", "content": f"output {i}"}
            messages += [{"role": "assistant", "content": reply.content}, observation]
            demonstration.extend([{"role": "assistant", "content": text}, observation])

    asyncio.run(converse())
    encoded = encode_conversation(renderer, tokenizer, demonstration)
    if name == "qwen3":
        assert len(list(chat.tree.branches())) == 1
        assert not chat.forks
    assert len(encoded.nodes) == len(chat.tree.nodes)
    for said, node in zip(encoded.nodes, chat.tree.nodes, strict=True):
        assert (said.parent, said.sampled, said.turn) == (node.parent, node.sampled, node.turn)
        assert np.array_equal(said.tokens, node.tokens)


def test_truncated_reply_is_closed_by_an_untrained_token(tokenizer, renderer):
    stop = renderer.get_stop_token_ids()[0]
    cut = tokenizer.encode("total", add_special_tokens=False)
    engine = ScriptedEngine(lambda _: cut)
    chat = chat_with(engine, renderer)

    async def converse():
        first = await chat.reply(begin())
        assert first.truncated
        assert first.sampled_tokens == len(cut)
        return await chat.reply(
            [*begin(), {"role": "assistant", "content": first.content}, {"role": "user", "content": "x"}]
        )

    last = asyncio.run(converse())
    observation = chat.tree.nodes[chat.tree.nodes[last.node].parent]
    assert not observation.sampled
    assert observation.tokens[0] == stop
    assert chat.tree.nodes[observation.parent].tokens.tolist() == cut
    assert not chat.forks


def test_tree_holds_each_token_once(tokenizer, renderer):
    stop = renderer.get_stop_token_ids()[0]
    chat = chat_with(ScriptedEngine(lambda call: [10 + call, stop]), renderer)

    async def converse():
        messages = begin()
        for turn in range(4):
            said = {"role": "assistant", "content": (await chat.reply(messages)).content}
            messages += [said, {"role": "user", "content": f"{turn}"}]

    asyncio.run(converse())
    assert not chat.forks
    assert all(node.tokens.base is None for node in chat.tree.nodes)  # a view would hold a whole prompt


def test_reply_in_rewritten_history_keeps_its_sampled_tokens(tokenizer, renderer):
    stop = renderer.get_stop_token_ids()[0]
    spelled = [
        tokenizer.encode(c, add_special_tokens=False)[0] for c in "total"
    ]  # not how "total" is encoded
    assert spelled != tokenizer.encode("total", add_special_tokens=False)
    engine = ScriptedEngine(lambda _: [*spelled, stop])
    chat = chat_with(engine, renderer)

    async def converse():
        said = {"role": "assistant", "content": (await chat.reply(begin("long " * 9))).content}
        await chat.reply([*begin("short"), said, {"role": "user", "content": "x"}])

    asyncio.run(converse())
    text = "".join(f" {i} " for i in engine.prompts[1])
    assert "".join(f" {i} " for i in [*spelled, stop]) in text
    assert chat.forks == {Fork.REWRITTEN: 1}


def test_retry_adds_a_second_reply_below_the_same_prompt(tokenizer, renderer):
    stop = renderer.get_stop_token_ids()[0]
    engine = ScriptedEngine(lambda call: [10 + call, stop])
    chat = chat_with(engine, renderer)

    async def converse():
        return await chat.reply(begin()), await chat.reply(begin())

    first, second = asyncio.run(converse())
    assert chat.tree.nodes[first.node].parent == chat.tree.nodes[second.node].parent
    assert len(chat.tree.nodes) == 3
    assert chat.forks == {Fork.RETRY: 1}


def test_failed_call_leaves_the_tree_unchanged(renderer):
    engine = ScriptedEngine(lambda _: [5], context_tokens=40)
    chat = chat_with(engine, renderer)

    async def converse():
        await chat.reply(begin())
        with pytest.raises(ContextOverflow):
            await chat.reply(begin("word " * 60))
        engine.fail = True
        with pytest.raises(EngineError):
            await chat.reply(begin())

    asyncio.run(converse())
    assert len(chat.tree.nodes) == 2
    assert not chat.forks


def test_each_reply_has_its_own_reproducible_seed(renderer):
    seeds = []
    for seed in (7, 7, 8):
        engine = ScriptedEngine(lambda _: [5, 2])
        chat = chat_with(engine, renderer, seed=seed)

        async def converse(chat=chat):
            await chat.reply(begin())
            await chat.reply(begin())

        asyncio.run(converse())
        seeds.append([sampling.seed for sampling in engine.samplings])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4


def test_prompt_must_not_end_with_an_assistant_message(renderer):
    chat = chat_with(ScriptedEngine(lambda _: [5]), renderer)
    for messages in ([], [*begin(), {"role": "assistant", "content": "x"}]):
        with pytest.raises(ValueError, match="the last must not be the assistant's"):
            asyncio.run(chat.reply(messages))


def test_close_frees_the_session(renderer):
    engine = ScriptedEngine(lambda _: [5])
    asyncio.run(chat_with(engine, renderer).close())
    assert engine.released == ["s"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "x"}],
        [*begin(), {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}],
        [*begin(), {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": 'f"'}}]}],
    ],
)
def test_impossible_demonstration_is_refused(tokenizer, renderer, messages):
    with pytest.raises(PolicyError):
        encode_conversation(renderer, tokenizer, messages)


def test_demonstrated_tool_calls_use_the_tokens_a_model_samples(tokenizer, renderer):
    call = {"id": "a1", "function": {"name": "run", "arguments": {"command": "ls"}}}
    demonstration = [
        *begin(),
        {"role": "assistant", "content": "Look.", "reasoning_content": "because", "tool_calls": [call]},
        {"role": "tool", "content": "shop.py", "tool_call_id": "a1"},
        {"role": "assistant", "content": "Done."},
    ]
    tree = encode_conversation(renderer, tokenizer, demonstration, tools=[TOOL])
    first, last = [tokenizer.decode(node.tokens) for node in tree.nodes if node.sampled]
    assert '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>' in first
    assert "because" in first
    assert first.endswith("<|im_end|>")
    assert last == "Done.<|im_end|>"
    assert len(list(tree.branches())) == 1
    engine = ScriptedEngine(lambda i: [node.tokens for node in tree.nodes if node.sampled][i])
    chat = chat_with(engine, renderer)

    async def converse():
        await chat.reply(demonstration[:2], tools=[TOOL])
        await chat.reply(demonstration[:4], tools=[TOOL])

    asyncio.run(converse())
    assert [node.tokens.tolist() for node in chat.tree.nodes] == [n.tokens.tolist() for n in tree.nodes]
