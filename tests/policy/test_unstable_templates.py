"""Templates that render earlier messages by later ones: prompts still equal the full rendering."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from hone.policy.chat import Chat, Fork
from hone.policy.engine import Sampling
from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from tests.policy import families
from tests.policy.conversations import TOOL, call, user
from tests.policy.scripted_engine import ScriptedEngine

CALLS = """
{%- if m.tool_calls %}{% for c in m.tool_calls %}{{ '<tool_call>\n{"name": "' + c.function.name
+ '", "arguments": ' + c.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{% endif %}"""
END = (
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEAD = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
STABLE = HEAD + "{{ m.content or '' }}" + CALLS + END
TOOLS = "{%- if tools %}{{ tools | tojson }}{% endif %}"
UNSTABLE = {
    "the latest message is marked": HEAD
    + "{{ m.content or '' }}{% if loop.last %}{{ ' (latest)' }}{% endif %}"
    + END,
    "messages are counted": "{{ messages | length }}" + HEAD + "{{ m.content or '' }}" + END,
    "tools stand before the last question": "{%- set n = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set n.last = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD.replace(
        "{{ '<|im", "{% if loop.index0 == n.last and tools %}{{ tools | tojson }}{% endif %}{{ '<|im"
    )
    + "{{ m.content or '' }}"
    + CALLS
    + END,
    "calls are left out once there is another question": TOOLS
    + "{%- set n = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set n.last = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD
    + "{{ m.content or '' }}{% if loop.index0 > n.last %}"
    + CALLS
    + "{% endif %}"
    + END,
    "the reply before the last is cut": HEAD
    + "{{ (m.content or '')[:3] if m.role == 'assistant' and not loop.last else (m.content or '') }}"
    + END,
}


def prompts(
    source: str, tools: list[dict] | None, seed: int
) -> tuple[list[list[int]], list[list[int]], Chat]:
    """Return the engine's prompts, their full renderings and the chat."""
    tokenizer, renderer = families.chatml(source)
    rng = np.random.default_rng(seed)

    def draw(index: int) -> list[int]:
        text = f"reply {index}"
        if tools and rng.random() < 0.5:
            item = call(index)["function"]
            text = "<tool_call>\n" + json.dumps({**item, "arguments": json.loads(item["arguments"])})
            text += "\n</tool_call>"
        return [*tokenizer.encode(text), renderer.get_stop_token_ids()[0]]

    engine = ScriptedEngine(draw)
    chat = Chat(engine, renderer, Sampling(), session="s")
    messages = [user("Fix the bug.")]
    whole: list[list[int]] = []

    async def ask() -> None:
        for i in range(6):
            whole.append(renderer.render_ids(messages, tools=tools, add_generation_prompt=True))
            reply = await chat.reply(messages, tools=tools)
            messages.append({"role": "assistant", "content": reply.content})
            if reply.tool_calls:
                messages[-1]["tool_calls"] = list(reply.tool_calls)
                results = [
                    {"role": "tool", "content": f"output {i}", "tool_call_id": c["id"]}
                    for c in reply.tool_calls
                ]
                messages.extend(results)
            if not reply.tool_calls or rng.random() < 0.4:
                messages.append(user(f"on {i}"))

    asyncio.run(ask())
    return [list(map(int, prompt)) for prompt in engine.prompts], whole, chat


@pytest.mark.parametrize("name", UNSTABLE)
@pytest.mark.parametrize("seed", range(4))
def test_template_that_looks_ahead_is_rerendered(name, seed):
    source = UNSTABLE[name]
    tools = [TOOL] if "tools" in source else None
    given, whole, chat = prompts(source, tools, seed)
    assert given == whole
    assert set(chat.forks) <= {Fork.TEMPLATE}
    if not tools:
        assert chat.forks


@pytest.mark.parametrize("seed", range(4))
def test_template_that_does_not_look_ahead_is_extended(seed):
    given, whole, chat = prompts(TOOLS + STABLE, [TOOL], seed)
    assert given == whole
    assert not chat.forks


def test_template_that_numbers_messages_is_rerendered():
    numbered = "m.role + (loop.index | string if m.role == 'user' else '') +"
    given, whole, _ = prompts(HEAD.replace("m.role +", numbered) + "{{ m.content }}" + END, None, 0)
    assert given == whole


SHOWN = (
    "{% if m.reasoning_content and loop.last %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{% elif m.reasoning_content %}{{ '(' + m.reasoning_content + ')' }}{% endif %}{{ m.content }}"
)


@pytest.mark.parametrize("source", [HEAD + SHOWN + END, "{{ messages | length }}" + HEAD + SHOWN + END])
def test_omitted_reasoning_is_rendered_where_the_template_shows_it(source):
    tokenizer, renderer = families.chatml(source)
    stop = renderer.get_stop_token_ids()[0]
    engine = ScriptedEngine(lambda i: [*tokenizer.encode(f"<think>because {i}</think>reply {i}"), stop])
    chat = Chat(engine, renderer, Sampling(), session="s")
    messages = [user("Fix the bug.")]

    async def ask() -> None:
        for i in range(4):
            reply = await chat.reply(messages)
            messages.extend([{"role": "assistant", "content": reply.content}, user(f"on {i}")])

    asyncio.run(ask())
    last = tokenizer.decode(engine.prompts[3])
    assert [last.count(f"assistant\n(because {i})reply {i}<|im_end|>") for i in range(3)] == [1] * 3
    assert chat.forks == {Fork.TEMPLATE: 3}


def test_template_without_tool_results_is_refused():
    source = TOOLS + STABLE.replace("{{ m.content", "{{ '' if m.role == 'tool' else m.content")
    _, renderer = families.chatml(source)
    messages = [user("x"), {"role": "assistant", "content": "", "tool_calls": [call(1)]}]
    with pytest.raises(PolicyError, match="omits messages of the role 'tool'"):
        renderer.render_ids([*messages, {"role": "tool", "content": "y", "tool_call_id": call(1)["id"]}])


def test_tool_result_is_never_lost_in_an_extension():
    source = TOOLS + STABLE.replace("{{ m.content", "{{ '' if m.role == 'tool' else m.content")
    tokenizer, renderer = families.chatml(source)
    stop = renderer.get_stop_token_ids()[0]
    text = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
    chat = Chat(ScriptedEngine(lambda _: [*tokenizer.encode(text), stop]), renderer, Sampling(), session="s")

    async def ask() -> None:
        reply = await chat.reply([user("x")], tools=[TOOL])
        said = {"role": "assistant", "content": "", "tool_calls": list(reply.tool_calls)}
        await chat.reply([user("x"), said, {"role": "tool", "content": "y"}], tools=[TOOL])

    with pytest.raises(PolicyError, match="omits messages of the role 'tool'"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (STABLE, "does not render tools"),
        (TOOLS + STABLE.replace("tool_call>", "my_call>"), "in a format that no parser reads back exactly"),
        (
            TOOLS + "{% if messages[-1].tool_calls %}{{ raise_exception('no') }}{% endif %}" + STABLE,
            "fails on tool",
        ),
    ],
)
def test_unparsable_tool_format_is_refused(source, why):
    tokenizer, renderer = families.chatml(source)
    chat = Chat(ScriptedEngine(lambda _: [5]), renderer, Sampling(), session="s")
    with pytest.raises(PolicyError, match=f"{why}.*: use an agent"):
        asyncio.run(chat.reply([user("x")], tools=[TOOL]))
    assert not chat.tree.nodes
    assert tokenizer.name_or_path == ""


def test_template_without_assistant_messages_is_refused():
    with pytest.raises(PolicyError, match="omits assistant messages"):
        families.chatml("{{ messages[0].content }}")


def test_template_with_an_unknown_date_format_is_refused():
    with pytest.raises(PolicyError, match="it formats the date by %c"):
        families.chatml("{{ strftime_now('%c') }}" + STABLE)


def test_auto_requires_equal_tool_calls():
    tokenizer, _ = families.chatml(TOOLS + STABLE)
    with pytest.raises(PolicyError, match="or to 'default'"):
        make_renderer(tokenizer)
    tokenizer.chat_template = STABLE  # without tools, it is Qwen3's
    assert make_renderer(tokenizer).get_stop_token_ids()
