"""The reasons of forks."""

from __future__ import annotations

import asyncio

import pytest

from hone.policy.chat import Chat, Fork
from hone.policy.engine import Sampling
from hone.policy.reply import CallKind
from tests.policy.conversations import TOOL, user
from tests.policy.scripted_engine import ScriptedEngine

BEGIN = [{"role": "system", "content": "You fix bugs."}, user("Fix the bug.")]
MARK = user("(earlier messages are left out)")


def said(index: int) -> dict:
    return {"role": "assistant", "content": f"said {index}"}


def conversation(turns: int) -> list[dict]:
    """`turns` turns that have been taken, each with a reply and an observation."""
    return [*BEGIN, *(m for i in range(turns) for m in (said(i), user(f"output {i}")))]


def fork_of(tokenizer, renderer, calls) -> tuple[Fork | None, Chat]:
    """Return why the last of `calls` forks, after a conversation of five turns."""
    stop = renderer.get_stop_token_ids()[0]
    engine = ScriptedEngine(lambda i: [*tokenizer.encode(f"said {i}", add_special_tokens=False), stop])
    chat = Chat(engine, renderer, Sampling(), session="s")

    async def converse() -> None:
        for i in range(5):
            await chat.reply(conversation(i))
        assert not chat.forks
        for messages, options in calls:
            await chat.reply(messages, **options)

    asyncio.run(converse())
    assert sum(chat.forks.values()) == sum(call.fork is not None for call in chat.calls)
    return chat.calls[-1].fork, chat


FIVE = conversation(5)
SIDE = {"purpose": CallKind.AUXILIARY}


@pytest.mark.parametrize(
    ("messages", "options", "reason"),
    [
        (FIVE, {}, None),
        ([*FIVE[:-1], user("another output")], {}, None),
        (FIVE[:-2], {}, Fork.RETRY),
        (FIVE[:4], {}, Fork.RETRY),
        ([*FIVE[:6], user("another output")], {}, Fork.REWRITTEN),
        ([*FIVE[:5], user("edited"), *FIVE[6:]], {}, Fork.REWRITTEN),
        ([*FIVE[:4], {"role": "assistant", "content": "edited"}, *FIVE[5:]], {}, Fork.REWRITTEN),
        ([BEGIN[0], user("Fix another bug."), *FIVE[2:]], {}, Fork.REWRITTEN),
        ([{"role": "system", "content": "You?"}, *FIVE[1:]], {}, Fork.REWRITTEN),
        (FIVE, {"tools": [TOOL]}, Fork.REWRITTEN),
        ([*BEGIN, MARK, *FIVE[-2:]], {}, Fork.COMPACTED),
        ([*FIVE[:4], MARK, *FIVE[-4:]], {}, Fork.COMPACTED),
        ([*BEGIN, *FIVE[-4:]], {}, Fork.COMPACTED),
        ([BEGIN[0], user("This is what happened so far.")], {}, Fork.COMPACTED),
        ([{"role": "system", "content": "Give a title."}, user("Fix the bug.")], {}, Fork.AUXILIARY),
        ([{"role": "system", "content": "Give a title."}, *FIVE[1:4]], SIDE, Fork.AUXILIARY),
        ([*FIVE[:6], user("Summarise.")], SIDE, Fork.AUXILIARY),
        ([*FIVE[:-1], user("Summarise.")], SIDE, None),
    ],
)
def test_fork_reason(tokenizer, renderer, messages, options, reason):
    fork, chat = fork_of(tokenizer, renderer, [(messages, options)])
    assert fork == reason
    assert chat.forks == ({reason: 1} if reason else {})


def test_main_call_after_an_auxiliary_call_is_an_auxiliary_fork(tokenizer, renderer):
    calls = [([*FIVE[:-1], user("Summarise.")], SIDE), (FIVE, {})]
    fork, chat = fork_of(tokenizer, renderer, calls)
    assert fork is Fork.AUXILIARY
    assert chat.calls[-2].fork is None


def test_auxiliary_branch_continues_without_another_fork(tokenizer, renderer):
    aside = [{"role": "system", "content": "Search."}, user("Where?")]
    calls = [(aside, SIDE), ([*aside, said(5), user("Where else?")], SIDE), (FIVE, {})]
    fork, chat = fork_of(tokenizer, renderer, calls)
    assert fork is None
    assert chat.forks == {Fork.AUXILIARY: 1}


def test_history_summarised_by_an_auxiliary_call_is_compacted(tokenizer, renderer):
    aside = [{"role": "system", "content": "Summarise."}, user("said 0, output 0, said 1")]
    short = [BEGIN[0], user("So far: little."), {"role": "assistant", "content": "Got it."}, user("Go on.")]
    fork, _ = fork_of(tokenizer, renderer, [(aside, SIDE), (short, {})])
    assert fork is Fork.COMPACTED


def test_compacted_history_continues_without_another_fork(tokenizer, renderer):
    short = [*BEGIN, MARK, *FIVE[-2:]]
    fork, chat = fork_of(tokenizer, renderer, [(short, {}), ([*short, said(5), user("on")], {})])
    assert fork is None
    assert chat.forks == {Fork.COMPACTED: 1}
