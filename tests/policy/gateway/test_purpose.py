"""What a call is for, on requests as real clients send them, and at the edges of the rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.policy.gateway.purpose import Line, line_of, purpose_of
from hone.policy.reply import CallKind

RECORDED = json.loads((Path(__file__).parent / "qwen_code_0_24_4.json").read_text())
MAIN = Line("You fix bugs.", frozenset({"ls", "cat", "edit", "agent"}))


def specs(*names: str) -> list[dict]:
    return [{"name": name, "description": "", "parameters": {}} for name in names]


def request(text: str = "Fix it.", system: str = "You fix bugs.", role: str = "user") -> list[dict]:
    return [{"role": "system", "content": system}, {"role": role, "content": text}]


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_calls_of_a_recorded_session_are_classified(name):
    main = None
    for recorded in RECORDED[name]:
        messages = [{**m, "content": m["content"] or ""} for m in recorded["messages"]]
        tools = specs(*recorded["tools"])
        if recorded["purpose"] is None:  # a broken reply's rest, which is no call of its own
            continue
        purpose = purpose_of(messages, tools, main, lambda: False)
        assert purpose == recorded["purpose"]
        if purpose is CallKind.MAIN:
            main = line_of(messages, tools)


@pytest.mark.parametrize(
    ("messages", "tools", "continues", "purpose"),
    [
        (request(), specs("ls", "cat", "edit", "agent"), False, CallKind.MAIN),
        (request(), specs("ls", "cat", "edit", "agent", "new"), False, CallKind.MAIN),  # tools were found
        (request(), specs("ls", "cat"), False, CallKind.MAIN),
        (request(), specs("ls"), False, CallKind.AUXILIARY),
        (request(), specs("respond_in_schema"), True, CallKind.AUXILIARY),
        (request(), [], True, CallKind.AUXILIARY),
        (request(system="You explore."), specs("ls", "cat", "edit"), False, CallKind.AUXILIARY),
        (request(system="You fix bugs. It is 9:01."), specs("ls", "cat", "edit"), True, CallKind.MAIN),
        (request("quota"), specs("ls", "cat", "edit", "agent"), False, CallKind.AUXILIARY),
        (request("<fork-boilerplate>\nSTOP."), specs("ls", "cat", "edit", "agent"), True, CallKind.AUXILIARY),
        (
            request("Your task is to create a detailed summary of the conversation so far."),
            specs("ls", "cat", "edit", "agent"),
            True,
            CallKind.AUXILIARY,
        ),
        # what a tool printed, or a user quotes, never makes a turn a side call
        (
            request("<fork-boilerplate>", role="tool"),
            specs("ls", "cat", "edit", "agent"),
            True,
            CallKind.MAIN,
        ),
        (request("He said: quota"), specs("ls", "cat", "edit", "agent"), True, CallKind.MAIN),
    ],
)
def test_call_classification_at_the_limits_of_its_rules(messages, tools, continues, purpose):
    assert purpose_of(messages, tools, MAIN, lambda: continues) is purpose


def test_first_call_is_main_unless_a_known_auxiliary_call():
    assert purpose_of(request(), [], None, lambda: False) is CallKind.MAIN
    title = request(system="Generate a concise, sentence-case title (3-7 words) that ...")
    assert purpose_of(title, [], None, lambda: False) is CallKind.AUXILIARY


def test_main_line_without_tools_yields_to_one_with_tools():
    plain = Line("You fix bugs.", frozenset())
    assert purpose_of(request(), [], plain, lambda: False) is CallKind.MAIN
    assert purpose_of(request(system="You judge."), [], plain, lambda: False) is CallKind.AUXILIARY
    assert purpose_of(request(system="You work."), specs("ls"), plain, lambda: False) is CallKind.MAIN
