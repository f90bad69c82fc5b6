"""Context policies over messages, and in a chat that keeps every token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from hone.agents.context import ManagedChat, drop_thinking, head_tail, omitted_marker
from hone.agents.settings import ContextSettings
from hone.policy.chat import Chat, Fork
from hone.policy.engine import ContextOverflow, Sampling
from hone.policy.model import make_renderer
from hone.policy.reply import Reply
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.train.samples import tree_samples
from hone.types import Message, TokenTree
from tests.policy.scripted_engine import ScriptedEngine

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))
MARKER_TOKENS = len(omitted_marker(1)["content"].split())


class Words:
    """Counts words: a token each, and two for every message."""

    def __init__(self) -> None:
        self.counted = 0

    def prompt(self, messages: Sequence[Message]) -> int:
        self.counted += len(messages)
        return sum(2 + len(message["content"].split()) for message in messages)

    turn = prompt


def words(name: str, count: int) -> str:
    return " ".join(f"{name}.{i}" for i in range(count))


def conversation(sizes: Sequence[tuple[int, ...]], *, fixed: int = 20) -> list[Message]:
    """A system prompt and a problem of `fixed` words together, then turns: a reply and its observations."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": words("problem", fixed - 1)}]
    for number, (reply, *observations) in enumerate(sizes):
        messages.append({"role": "assistant", "content": words(f"reply{number}", reply)})
        role = "user" if len(observations) == 1 else "tool"
        messages += [{"role": role, "content": words(f"seen{number}", size)} for size in observations]
    return messages


def flat(turns: Sequence[list[Message]]) -> list[Message]:
    return [message for turn in turns for message in turn]


def published(messages: list[Message], budget: int, ratio: float) -> list[Message]:
    """The algorithm as it was published, step by step, for conversations of single observations."""
    count = Words().prompt
    if count(messages) <= budget:
        return messages
    fixed, rest = messages[:2], messages[2:]
    turns = [rest[i : i + 2] for i in range(0, len(rest), 2)]
    if len(turns) <= 1:
        return messages
    available = budget - count([*fixed, omitted_marker(0)])
    if available <= 0:
        return [*fixed, omitted_marker(len(turns))]
    head_budget = int(available * ratio)
    tail_budget = available - head_budget
    head = 0
    while head < len(turns) and count(flat(turns[: head + 1])) <= head_budget:
        head += 1
    tail = len(turns)
    while tail > head and count(flat(turns[tail - 1 :])) <= tail_budget:
        tail -= 1
    if tail == head:
        return messages
    return [*fixed, *flat(turns[:head]), omitted_marker(tail - head), *flat(turns[tail:])]


SIZES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 120)) | st.tuples(*[st.integers(0, 30)] * 4), max_size=12
)


@relaxed
@example(sizes=[(0, 19), (0, 33)], budget=75, ratio=1.0, merge=False)  # the first turn or a cut second one
@example(
    sizes=[(0, 0), (0, 31)], budget=59, ratio=1.0, merge=False
)  # the second is cut within its first word
@example(
    sizes=[(0, 0, 0, 0), (0,), (0, 20)], budget=59, ratio=1.0, merge=True
)  # no user message for the marker
@given(sizes=SIZES, budget=st.integers(0, 600), ratio=st.floats(0, 1), merge=st.booleans())
def test_head_tail_invariants(sizes: list[tuple[int, ...]], budget: int, ratio: float, merge: bool) -> None:
    messages, counter = conversation(sizes), Words()
    try:
        kept = head_tail(messages, budget=budget, counter=counter, head_ratio=ratio, merge=merge)
    except ContextOverflow:
        newest = messages[-len(sizes[-1]) :] if sizes else []
        newest = [m if m["role"] == "assistant" else {**m, "content": m["content"][:60]} for m in newest]
        note = 12 * len(newest)
        assert counter.prompt([*messages[:2], omitted_marker(1), *newest]) + note > budget
        return
    assert counter.prompt(kept) <= budget
    assert kept[0] == messages[0]
    assert kept[1]["content"].startswith(messages[1]["content"])
    if counter.prompt(messages) <= budget:
        assert kept == messages
        return
    turns = len(sizes)
    missing = turns - len([m for m in kept if m["role"] == "assistant"])
    marked = [m for m in kept if "turn(s) of interaction history omitted" in m["content"]]
    assert len(marked) == (1 if missing else 0)
    assert missing == 0 or f"[... {missing} turn(s)" in marked[0]["content"]
    last = len(sizes[-1])
    older = [re.match(r"(?:reply|seen)(\d+)", message["content"]) for message in kept[:-last]]
    numbers = [int(found[1]) for found in older if found]
    assert numbers == sorted(numbers)
    assert [m["role"] for m in kept[-last:]] == [m["role"] for m in messages[-last:]]
    for now, before in zip(kept[-last:], messages[-last:], strict=True):
        whole = now["content"] == before["content"]
        assert whole or ("characters omitted" in now["content"] and before["role"] != "assistant")
    alone = counter.prompt([*messages[:2], omitted_marker(turns), *messages[-last:]])
    if alone <= budget:
        assert kept[-last:] == messages[-last:]
    if merge and missing:
        assert all(a["role"] != "user" or b["role"] != "user" for a, b in pairwise(kept))


@relaxed
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 90)), min_size=2, max_size=14),
    budget=st.integers(60, 900),
    ratio=st.sampled_from([0.3, 0.3, 0.0, 0.5, 1.0]),
)
def test_head_tail_is_the_published_algorithm(
    sizes: list[tuple[int, int]], budget: int, ratio: float
) -> None:
    messages, counter = conversation(sizes), Words()
    expected = published(messages, budget, ratio)
    assume(counter.prompt(expected) <= budget)  # a difference: it may exceed the budget
    assume(expected[-1] == messages[-1])  # a difference: it may omit the newest turn
    kept = head_tail(messages, budget=budget, counter=counter, head_ratio=ratio)
    if kept != expected:  # the last difference: the tail gets the unused tokens of the head
        at = next(i for i, m in enumerate(expected) if m["content"].startswith("[..."))
        assert kept[:at] == expected[:at]
        assert len(kept) > len(expected)
        assert kept[-len(expected[at + 1 :]) :] == expected[at + 1 :]
        left = budget - counter.prompt(expected)
        assert counter.prompt(kept) - counter.prompt(expected) <= left


def test_published_example_of_a_context_of_16384() -> None:
    budget = 16384 - 4096
    assert budget == 12288
    fixed = 784 - MARKER_TOKENS - 6  # with the marker and three messages' own tokens: 784, of 500 to 800
    sizes = [(98, 468)] * 40  # 570 tokens a turn
    messages, counter = conversation(sizes, fixed=fixed), Words()
    kept = head_tail(messages, budget=budget, counter=counter)
    assert kept == published(messages, budget, 0.3)
    available = budget - counter.prompt([*messages[:2], omitted_marker(1)])
    assert available == 11504
    at = next(i for i, m in enumerate(kept) if m["content"].startswith("[..."))
    head, tail = counter.prompt(kept[2:at]), counter.prompt(kept[at + 1 :])
    assert (head, int(available * 0.3)) == (3420, 3451)  # whole turns of 570 below about 3,450
    assert (tail, available - int(available * 0.3)) == (7980, 8053)  # ... and about 8,050
    text = "[... 20 turn(s) of interaction history omitted due to context window limit ...]"
    assert kept[at] == {"role": "user", "content": text}


def test_tail_gets_the_unused_tokens_of_the_head() -> None:
    sizes = [(10, 300), *[(10, 30)] * 30]  # the first turn is too long for the head
    messages = conversation(sizes)
    kept = head_tail(messages, budget=500, counter=Words())
    assert Words().prompt(kept) > 440
    assert Words().prompt(published(messages, 500, 0.3)) < 380


def test_newest_observation_is_cut_only_if_needed() -> None:
    messages = conversation([(5, 20), (5, 20), (5, 400)])
    kept = head_tail(messages, budget=460, counter=Words())
    assert kept[-1] == messages[-1]
    kept = head_tail(messages, budget=200, counter=Words())
    assert kept[-1]["content"].startswith("seen2.0 seen2.1 ")
    assert kept[-1]["content"].endswith(" seen2.398 seen2.399")
    assert "characters omitted due to context window limit" in kept[-1]["content"]
    assert 170 <= Words().prompt(kept) <= 200
    assert "reply0.0" in kept[2]["content"]  # the head keeps its share
    with pytest.raises(ContextOverflow):
        head_tail(messages, budget=40, counter=Words())


def test_only_the_longest_observations_are_cut() -> None:
    messages = conversation([(5, 20), (5, 10, 500, 10)])
    kept = head_tail(messages, budget=150, counter=Words())
    assert kept[-3:-1] != messages[-3:-1]
    assert (kept[-3], kept[-1]) == (messages[-3], messages[-1])


def test_turn_ends_at_the_next_reply() -> None:
    messages = conversation([(5, 20, 20, 20)] * 8)
    error = {"role": "user", "content": words("error", 4)}
    messages.insert(6, error)  # a format error after the first turn's observations
    kept = head_tail(messages, budget=300, counter=Words(), head_ratio=0.5)
    assert kept[2:7] == messages[2:7]  # the first turn, whole
    assert [m["role"] for m in kept[7:]] == ["user", *["assistant", "tool", "tool", "tool"] * 2]


def test_reasoning_is_dropped_from_all_but_the_newest_reply() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "fix"},
        {"role": "assistant", "content": "a", "reasoning_content": "why a"},
        {"role": "user", "content": "seen"},
        {"role": "assistant", "content": "b"},  # a client that left it out
        {"role": "tool", "content": "seen"},
        {"role": "assistant", "content": "c", "reasoning_content": "why c"},
        {"role": "user", "content": "seen"},
    ]
    before = [dict(message) for message in messages]
    reasonings = [m.get("reasoning_content") for m in drop_thinking(messages)]
    assert reasonings == [None, "", None, "", None, "why c", None]
    assert messages == before


# --- around a chat

TEXTS = ["one two three four five six seven eight nine ten\n", "<think>why</think>\nso I look\n"] * 3
ALTERNATING = (
    "{%- for m in messages %}{%- if not loop.first and m.role == 'user' and messages[loop.index0 - 1].role"
    " == 'user' %}{{ raise_exception('roles must alternate') }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(TEXTS, TinyModelSettings())


class Loop:
    """An agent's loop over a scripted engine: reply after reply, an observation behind each."""

    def __init__(self, tokenizer: Any, context: ContextSettings, *, renderer: str = "qwen3", room: int = 400):
        renderers = make_renderer(tokenizer, renderer)
        self.stop = renderers.get_stop_token_ids()[0]
        self.tokenizer, self.replies = tokenizer, list[str]()
        self.engine = ScriptedEngine(self._answer, context_tokens=room + 20)
        self.inner = Chat(self.engine, renderers, Sampling(max_tokens=20), session="s")
        self.chat = ManagedChat(self.inner, context)
        self.messages: list[Message] = [
            {"role": "system", "content": "one two"},
            {"role": "user", "content": "three four five"},
        ]

    def _answer(self, number: int) -> list[int]:
        return [*self.tokenizer.encode(self.replies[number], add_special_tokens=False), self.stop]

    async def turn(self, reply: str, observation: str) -> Reply:
        self.replies.append(reply)
        answered = await self.chat.reply(self.messages)
        self.messages += [answered.to_message(), {"role": "user", "content": observation}]
        return answered

    def check_tree(self) -> None:
        """Each reply lies behind exactly the prompt that the engine was given, and is trained once."""
        tree, nodes = self.inner.tree, [call.node for call in self.inner.calls]
        for node, prompt, completion in zip(nodes, self.engine.prompts, self.engine.completions, strict=True):
            assert node is not None
            parent = tree.nodes[node].parent
            assert parent is not None
            assert tree.tokens(parent).tolist() == prompt
            assert tree.nodes[node].tokens.tolist() == completion.token_ids.tolist()
        samples = tree_samples(tree, rollout_id="r", group_id="g", advantage=1.0)
        trained = sum(int((sample.weight > 0).sum()) for sample in samples)
        assert trained == tree.sampled_tokens == sum(len(c.token_ids) for c in self.engine.completions)


@pytest.mark.parametrize("renderer", ["qwen3", "default"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60)), min_size=1, max_size=25))
def test_replies_are_trained_in_their_cut_context(
    tokenizer: Any, renderer: str, sizes: list[tuple[int, int]]
) -> None:
    loop = Loop(tokenizer, ContextSettings(policy="head_tail"), renderer=renderer)

    async def converse() -> None:
        for number, (reply, observation) in enumerate(sizes):
            await loop.turn(f"{number} {words('reply', reply)}", f"{number} {'seven ' * observation}")

    asyncio.run(converse())
    assert all(len(prompt) <= loop.chat.max_prompt_tokens for prompt in loop.engine.prompts)
    loop.check_tree()


def test_cost_of_a_turn_does_not_grow(tokenizer: Any) -> None:
    loop = Loop(tokenizer, ContextSettings(policy="head_tail"))
    measured = list[int]()
    measure = loop.inner.measure

    def counting(messages: Sequence[Message], **options: Any) -> int:
        measured[-1] += len(messages)
        return measure(messages, **options)

    loop.inner.measure = counting  # type: ignore[method-assign]

    async def converse() -> None:
        for number in range(120):
            measured.append(0)
            await loop.turn(f"{number} one", "seven " * 30)

    asyncio.run(converse())
    assert loop.inner.forks
    assert max(measured[40:]) <= max(measured[20:40])


def test_short_conversation_is_sent_unchanged(tokenizer: Any) -> None:
    async def converse(loop: Loop) -> None:
        for number in range(8):
            await loop.turn(f"{number} one", "seven " * 10)

    for context in (ContextSettings(policy="head_tail"), ContextSettings()):
        loop = Loop(tokenizer, context)
        asyncio.run(converse(loop))
        assert not loop.inner.forks
        assert len(list(loop.inner.tree.branches())) == 1
    loop = Loop(tokenizer, ContextSettings(), room=100)
    with pytest.raises(ContextOverflow):
        asyncio.run(converse(loop))


def test_new_conversation_after_a_cut_is_complete(tokenizer: Any) -> None:
    loop = Loop(tokenizer, ContextSettings(policy="head_tail"))

    async def converse() -> None:
        for number in range(20):
            await loop.turn(f"{number} one", "seven " * 30)
        cut = loop.inner.tree.tokens(loop.inner.calls[-1].node or 0)
        assert "omitted" in tokenizer.decode(cut)
        loop.messages = [*loop.messages[:2], {"role": "user", "content": "summary"}]
        await loop.turn("again one", "seven")
        assert len(loop.engine.prompts[-1]) == loop.inner.measure(loop.messages[:3])
        assert loop.chat.measure(loop.messages) == loop.inner.measure(loop.messages)

    asyncio.run(converse())
    loop.check_tree()


def test_marker_is_merged_if_the_template_requires_it(
    tokenizer: Any,
) -> None:
    strict = make_tokenizer(TEXTS, TinyModelSettings())
    strict.chat_template = ALTERNATING
    for tokens, alone in ((tokenizer, True), (strict, False)):
        loop = Loop(tokens, ContextSettings(policy="head_tail"), renderer="default")
        for number in range(20):
            asyncio.run(loop.turn(f"{number} one", "seven " * 30))
        text = tokens.decode(loop.engine.prompts[-1])
        assert text.count("turn(s) of interaction history omitted") == 1
        assert ("user\n[..." in text) is alone
        loop.check_tree()


def test_drop_thinking_forks_and_trains_with_reasoning(tokenizer: Any) -> None:
    loop = Loop(tokenizer, ContextSettings(policy="drop_thinking"), room=2000)

    async def converse() -> None:
        for number in range(4):
            reply = await loop.turn(f"<think>\nwhy {number}\n</think>\n\nso {number}", "seven")
            assert reply.reasoning

    asyncio.run(converse())
    prompts = [tokenizer.decode(prompt) for prompt in loop.engine.prompts]
    assert ["why" in prompt for prompt in prompts] == [False, True, True, True]
    assert "why 0" in prompts[1]
    assert [f"why {n}" in prompts[3] for n in range(3)] == [False, False, True]
    assert all(f"so {n}" in prompts[3] for n in range(3))
    assert loop.inner.forks[Fork.THINKING] == 2
    loop.check_tree()


def test_budget_holds_if_turns_cost_more_together() -> None:
    class Dear:
        """A template that adds a token to each message for every one before it."""

        tree, max_prompt_tokens = TokenTree(), 900

        def __init__(self) -> None:
            self.measured: list[int] = []

        def measure(self, messages: Sequence[Message], **_: object) -> int:
            return Words().prompt(messages) + sum(range(len(messages)))

        async def reply(self, messages: list[Message], **_: object) -> Reply:
            self.measured.append(self.measure(messages))
            return Reply(content="one", node=None)

    inner = Dear()
    chat = ManagedChat(inner, ContextSettings(policy="head_tail"))
    for turns in range(1, 30):
        asyncio.run(chat.reply(conversation([(5, 20)] * turns)))
    assert max(inner.measured) <= 900
    assert min(inner.measured[15:]) > 600
