"""The scripted engine: its ids parse back to the replies of the script."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.policy.chat import Chat
from hone.policy.engine import EngineError, Sampling
from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from hone.policy.scripted import ScriptedCall, ScriptedEngine, ScriptedReply, encode_reply, read_script
from tests.examples import examples

WORDS = st.text(alphabet='ab \n.é{}"', max_size=10).map(str.strip)
BEGIN = [{"role": "user", "content": "Fix it."}]
relaxed = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))


def ask(engine: ScriptedEngine, renderer, messages: list, session: str = "s", **sampling):
    return asyncio.run(Chat(engine, renderer, Sampling(**sampling), session=session).reply(messages))


@relaxed
@given(
    content=WORDS,
    reasoning=WORDS,
    calls=st.lists(
        st.tuples(st.sampled_from(["ls", "cat"]), st.dictionaries(WORDS, WORDS, max_size=2)), max_size=2
    ),
)
def test_scripted_reply_round_trips(tokenizer, renderer, content, reasoning, calls):
    reply = ScriptedReply(
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(ScriptedCall(name=name, arguments=arguments) for name, arguments in calls),
    )
    engine = ScriptedEngine([reply], renderer, tokenizer)
    read = ask(engine, renderer, BEGIN, max_tokens=10_000)
    assert (read.content, read.reasoning or "", read.truncated) == (content, reasoning, False)
    called = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in read.tool_calls]
    assert called == calls
    assert engine.completions[0].token_ids.tolist() == encode_reply(reply, renderer, tokenizer)


def test_unrenderable_reply_is_refused(tokenizer):
    plain = make_renderer(tokenizer, "default")  # a template without tools
    with pytest.raises(PolicyError, match="cannot render"):
        ScriptedEngine([ScriptedReply(tool_calls=(ScriptedCall(name="ls"),))], plain, tokenizer)


def test_script_restarts_in_every_session(tokenizer, renderer):
    engine = ScriptedEngine([ScriptedReply(content="one"), ScriptedReply(content="two")], renderer, tokenizer)
    assert [ask(engine, renderer, BEGIN, name).content for name in ("a", "b", "a")] == ["one", "one", "two"]
    with pytest.raises(EngineError, match="no reply left"):
        ask(engine, renderer, BEGIN, "a")


def test_conditional_reply_answers_only_its_prompt(tokenizer, renderer):
    waiting = ScriptedReply(content="found", when="look at b.py")
    engine = ScriptedEngine([waiting, ScriptedReply(content="one")], renderer, tokenizer)
    assert ask(engine, renderer, BEGIN).content == "one"
    assert ask(engine, renderer, [{"role": "user", "content": "look at b.py"}]).content == "found"


def test_faults_and_truncation_follow_the_script(tokenizer, renderer):
    script = [
        ScriptedReply(error="out of memory"),
        ScriptedReply(content="cut here", finish="length", drop_after_bytes=7),
        ScriptedReply(content="a long reply"),
    ]
    engine = ScriptedEngine(script, renderer, tokenizer)
    with pytest.raises(EngineError, match="out of memory"):
        ask(engine, renderer, BEGIN)
    reply = ask(engine, renderer, BEGIN)
    assert (reply.content, reply.truncated) == ("cut here", True)
    assert (engine.take_drop("s"), engine.take_drop("s")) == (7, None)
    assert ask(engine, renderer, BEGIN, max_tokens=9).truncated


def test_script_has_one_reply_per_line(tmp_path):
    path = tmp_path / "session.jsonl"
    path.write_text(
        '{"content": "a", "tool_calls": [{"name": "ls", "arguments": {"x": 1}}]}\n\n{"text": "b"}\n'
    )
    first, second = read_script(path)
    assert first.tool_calls == (ScriptedCall(name="ls", arguments={"x": 1}),)
    assert (first.text, second.text) == (None, "b")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.jsonl", '{"content": "a"}\n{"contents": "b"}', "line 2: contents"),
        ("a.jsonl", "{", "line 1: Invalid JSON"),
        ("a.jsonl", "{}\n\n[1]", "line 3: "),
    ],
)
def test_invalid_script_is_refused_with_the_position(tmp_path, name, text, sentence):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(PolicyError, match=sentence):
        read_script(path)
    with pytest.raises(PolicyError, match="cannot be read"):
        read_script(tmp_path / "missing.jsonl")
