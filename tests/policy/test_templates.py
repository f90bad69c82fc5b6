"""Every chat template of real models, and every model family, in every kind of conversation."""

from __future__ import annotations

import asyncio
import copy
import datetime
import os
import re
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.policy import compose
from hone.policy.chat import Chat, Fork
from hone.policy.engine import Sampling
from hone.policy.errors import PolicyError
from hone.policy.messages import key_of, read_reply, reasoning_of
from hone.policy.model import make_renderer
from hone.policy.rendering import FamilyRenderer
from tests.policy import families
from tests.policy.conversations import TOOL, Conversation, call, sampled, user
from tests.policy.scripted_engine import ScriptedEngine
from tests.policy.template_table import ROWS

# conversations with each template
EXAMPLES = int(
    os.environ.get("HONE_TEMPLATE_EXAMPLES", "3" if os.environ.get("HYPOTHESIS_PROFILE") == "full" else "1")
)
OPERATIONS = ("next",) * 5 + ("again", "side", "edit", "compact", "rewind", "unthink", "fresh")
SPEAKERS = {
    **{f"template {name}": partial(families.template, name) for name in families.TEMPLATES},
    **{f"family {name}": partial(families.family, name) for name in families.FAMILIES},
}
QUIET = {
    f"family {name} told not to reason": partial(families.family, name, thinking=False)
    for name in families.QUIET
}


def named(names: Iterable[str], slow: Callable[[str], bool]) -> pytest.MarkDecorator:
    """Return the parametrization by name; `slow` tells which names `make fast` leaves out."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if slow(name) else name for name in names]
    )


# `make fast` has one of each kind of row in the table, and the templates with habits of their own.
FEW = {
    *(f"template {name}" for name in ("deepseekv3", "gemma4_v5", "gptoss", "lfm2_2_5", "llama3_2")),
    *(f"template {name}" for name in ("qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_6", "qwen3_8")),
    *(f"family {name}" for name in ("deepseek-r1", "gemma4", "glm-4.5", "laguna-m.1", "qwen3", "qwen3-vl")),
}
every = named(SPEAKERS, lambda name: name not in FEW)


@named([*SPEAKERS, *QUIET], lambda name: name not in ("template qwen3", "family qwen3", "family gemma4"))
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 2**32 - 1),
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 100)), min_size=5, max_size=9),
)
def test_sampled_tokens_keep_their_context(name, seed, operations):
    tokenizer, renderer = (SPEAKERS | QUIET)[name]()
    tools = [TOOL] if seed % 3 and takes_tools(renderer) else None
    conversation = Conversation(tokenizer, renderer, np.random.default_rng(seed), tools)

    async def converse() -> None:
        for operation, number in (("next", 0), *operations):
            await conversation.step(operation, number)

    asyncio.run(converse())
    assert len(conversation.nodes) > conversation.refused
    conversation.check()


def takes_tools(renderer) -> bool:
    try:
        renderer.render_ids([user("x")], tools=[TOOL], add_generation_prompt=True)
    except PolicyError:
        return False
    return True


KINDS = ("text", "cut", "reasoning", "tools")


def said_by(kind: str, index: int) -> dict:
    said: dict = {"role": "assistant", "content": f"reply {index}"}
    if kind == "reasoning":
        said["reasoning_content"] = f"because {index}"
    if kind == "tools":
        said |= {"content": "", "tool_calls": [call(2 * index), call(2 * index + 1)]}
    return said


def converse(name: str, kind: str, turns: int = 4) -> tuple[str, Chat, list[dict]]:
    """What a conversation that only grows does: extends, forks, or why there is none of this kind."""
    tokenizer, renderer = SPEAKERS[name]()
    tools = [TOOL] if kind == "tools" else None
    cut = [tokenizer.encode(letter)[0] for letter in "user"]  # not how the tokenizer spells it
    assert cut != tokenizer.encode("user")
    engine = ScriptedEngine(
        lambda i: cut if kind == "cut" else sampled(renderer, said_by(kind, i), tools) or cut
    )
    chat = Chat(engine, renderer, Sampling(), session="s")
    messages = [user("Fix the bug.")]

    async def ask() -> str:
        for i in range(turns):
            reply = await chat.reply(messages, tools=tools)
            messages.append({"role": "assistant", "content": reply.content})
            if reply.reasoning is not None:
                messages[-1]["reasoning_content"] = reply.reasoning
            if (kind == "reasoning" and "because" not in (reply.reasoning or "")) or (
                kind == "tools" and not reply.tool_calls
            ):
                return "not read"
            if kind != "tools":
                messages.append(user(f"output {i}"))
                continue
            messages[-1]["tool_calls"] = list(reply.tool_calls)
            for item in reply.tool_calls:
                messages.append({"role": "tool", "content": f"output {i}", "tool_call_id": item["id"]})
        await chat.reply(messages, tools=tools)
        return "forks" if chat.forks else "extends"

    try:
        return asyncio.run(ask()), chat, messages
    except PolicyError:
        return "refused", chat, messages


# The `renderers` package's own extension leaves out the line break behind a reply.
SHORTENED = {"family laguna-m.1", "family laguna-xs.2"}


@every
def test_extension_equals_the_rendered_template(name):
    found = []
    for kind in KINDS:
        outcome, chat, messages = converse(name, kind)
        found.append(outcome.replace("not read", "-"))
        if outcome == "forks":
            assert set(chat.forks) == {Fork.TEMPLATE}
        if outcome != "extends" or name in SHORTENED:
            continue
        assert len(list(chat.tree.branches())) == 1
        renderer = SPEAKERS[name]()[1]
        tools = [TOOL] if kind == "tools" else None
        whole = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        nodes, stops = chat.tree.nodes, renderer.get_stop_token_ids()
        if name == "family gpt-oss":  # it closes what was cut by a token that ends no reply
            stops = [*stops, SPEAKERS[name]()[0].convert_tokens_to_ids("<|end|>")]
        added = nodes[nodes[chat.calls[-1].node].parent].tokens.tolist()
        closed = nodes[chat.calls[-2].node].tokens[-1] in stops
        start = 0 if closed else 1 + next(i for i, token in enumerate(added) if token in stops)
        assert whole[-len(added) + start :] == added[start:]
    assert tuple(found) == ROWS[name]


# Before a reply they write a space, or words, that their own prompt for it does not end with.
UNLIKE = {f"template {name}" for name in ("idefics3", "llava_next", "smolvlm", "muse_glimmer")}


@named(
    sorted(name for name in SPEAKERS if name.startswith("template") and name not in UNLIKE),
    lambda name: name not in FEW,
)
@pytest.mark.parametrize("seed", range(2))
def test_prompts_equal_the_rendered_conversation(name, seed):
    tokenizer, renderer = SPEAKERS[name]()
    rng = np.random.default_rng(seed)
    tools = [TOOL] if takes_tools(renderer) else None

    def draw(index: int) -> list[int]:
        said: dict = {"role": "assistant", "content": f"reply {index}"}
        plain = dict(said)
        if rng.random() < 0.4:
            said["reasoning_content"] = f"because {index}"
        if tools and rng.random() < 0.6:
            said |= {"content": "", "tool_calls": [call(index)]}
        for wanted in (said, plain):
            ids = sampled(renderer, wanted, tools)
            if ids and reads(renderer, ids, wanted, tools):
                return ids
        return [*tokenizer.encode("reply"), renderer.get_stop_token_ids()[0]]

    engine = ScriptedEngine(draw)
    chat = Chat(engine, renderer, Sampling(), session="s")
    messages = [user("Fix the bug.")]

    async def ask() -> None:
        for i in range(6):
            reply = await chat.reply(messages, tools=tools)
            whole = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
            assert list(map(int, engine.prompts[-1])) == whole
            messages.append(
                {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning}
            )
            if reply.tool_calls:
                messages[-1]["tool_calls"] = list(reply.tool_calls)
                messages.extend(result(f"output {i}", c["id"]) for c in reply.tool_calls)
            if not reply.tool_calls or rng.random() < 0.3:
                messages.append(user(f"on {i}"))

    asyncio.run(ask())


def reads(renderer, ids: list[int], said: dict, tools: list[dict] | None) -> bool:
    opening = renderer.render_ids([user("x")], tools=tools, add_generation_prompt=True)
    read = read_reply(renderer.parse_response(ids, tools=tools, prompt_ids=opening), 0).to_message()
    return key_of(read) == key_of(said) and (reasoning_of(read) or "") == (reasoning_of(said) or "")


def result(text: str, call_id: str) -> dict:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


@named([name for name in SPEAKERS if name.startswith("family")], lambda name: name not in FEW)
def test_renderer_needs_only_the_end_of_a_prompt(name, monkeypatch):
    def prompts() -> list[list[int]]:
        tokenizer, renderer = SPEAKERS[name]()
        tools = [TOOL] if takes_tools(renderer) else None
        conversation = Conversation(tokenizer, renderer, np.random.default_rng(7), tools)

        async def converse() -> None:
            for number in range(6):
                await conversation.step("next", number)

        asyncio.run(converse())
        return [list(map(int, prompt)) for prompt in conversation.engine.prompts]

    shown = prompts()
    assert len(shown) > 3
    monkeypatch.setattr(compose, "WINDOW", 1 << 30)
    assert prompts() == shown


def saying(place: str, text: str) -> tuple[list[dict], list[dict] | None]:
    """A conversation, and its tools, that hold the text in one place."""
    begun = [user("x"), {"role": "assistant", "content": "y"}]
    called = {**begun[1], "tool_calls": [call(1)]}
    output = result("o", call(1)["id"])
    match place:
        case "question":
            return [user(text)], None
        case "system":
            return [{"role": "system", "content": text}, user("x")], None
        case "output":
            return [user("x"), called, {**output, "content": text}], None
        case "reply":
            return [user("x"), {**begun[1], "content": text}, user("z")], None
        case "reasoning":
            return [user("x"), {**called, "reasoning_content": text}, output], [TOOL]
        case "arguments":
            return [user("x"), {**called, "tool_calls": [call(1, text)]}, output], [TOOL]
        case _:
            return [user("x")], [{**TOOL, "description": text}]


@every
@pytest.mark.parametrize(
    "place", ["question", "system", "output", "reply", "reasoning", "arguments", "description"]
)
def test_special_tokens_in_messages_stay_text(name, place):
    tokenizer, renderer = SPEAKERS[name]()
    special = families.special_tokens(tokenizer)
    if place == "reply":  # renderers find the reasoning in it by them
        special = [token for token in special if token not in ("<think>", "</think>")]
    mention = " ".join(special)
    messages, tools = saying(place, "vqx")
    try:
        plain = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    except PolicyError:
        pytest.skip("the template has no place for it")
    if "vqx" not in tokenizer.decode(plain):
        assert place in ("reasoning", "description")
        pytest.skip("the template leaves it out")
    messages, tools = saying(place, mention)
    ids = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    structure = set(tokenizer.convert_tokens_to_ids(special))
    assert [i for i in ids if i in structure] == [i for i in plain if i in structure]
    if place != "reply" or "gemma" not in name:  # it takes its markers of reasoning out of a reply
        assert mention in tokenizer.decode(ids)


DATED = [  # a family whose renderer has the date, one whose template has it, and a template alone
    *(f"family {name}" for name in ("gpt-oss", "llama-3")),
    "template llama3_2",
    *(pytest.param(f"template {name}", marks=pytest.mark.full) for name in ("gptoss", "muse_glimmer")),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DATED)
def test_prompt_with_a_date_is_the_same_every_day(name, monkeypatch):
    def prompt(year: int) -> str:
        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls(year, 1, 2, tzinfo=tz)

        monkeypatch.setattr("renderers.gpt_oss.datetime", Clock)
        monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
        tokenizer, _ = SPEAKERS[name]()
        kind, called = name.split()
        with families.gpt_oss_vocabulary():
            renderer = make_renderer(tokenizer, called if kind == "family" else "default")
        return tokenizer.decode(renderer.render_ids([user("x")], add_generation_prompt=True))

    assert prompt(2031) == prompt(2032)
    assert re.search(r"[Dd]ate: (2024-07-26|26 Jul 2024)", prompt(2031))


def test_auto_finds_the_family_of_a_template_with_a_date():
    tokenizer, family = families.family("llama-3")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.bos_token = "<|begin_of_text|>"
    tokenizer.chat_template = (families.FOLDER / "llama3_2.jinja").read_text()
    found = make_renderer(tokenizer, "auto")
    said = [user("x"), {"role": "assistant", "content": "y"}]
    assert isinstance(found, FamilyRenderer)
    assert found.render_ids(said) == family.render_ids(said)
