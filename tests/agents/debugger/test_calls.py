"""Parsing of tool calls and checks of their arguments."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.debugger.agent import CallError, ToolUse, check_arguments, parse_call
from hone.agents.debugger.tools import tool_specs
from hone.policy.reply import Reply

TOOLS = {tool["name"]: tool for tool in tool_specs(pdb=True)}
FREE = st.text(st.characters(codec="utf-8"), max_size=30)


def _text(content: str) -> ToolUse:
    return parse_call(Reply(content=content, node=None), native=False)


def _native(*calls: tuple[str, str], **more: Any) -> ToolUse:
    made = tuple(
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    )
    return parse_call(Reply(content="", node=None, tool_calls=made, **more), native=True)


def test_ablation_has_every_tool_but_pdb():
    assert list(TOOLS) == ["pdb", "view", "edit", "rewrite", "grep", "listdir", "eval", "submit"]
    assert [tool["name"] for tool in tool_specs(pdb=False)] == list(TOOLS)[1:]


def test_last_native_call_counts():
    assert _native(("view", '{"path": "a"}'), ("eval", "")) == ToolUse(name="eval", arguments={})
    assert _native(("view", "{not json")).arguments == "{not json"
    with pytest.raises(CallError, match=r"^Empty tool name in action: the tool call cannot be read: <tool"):
        _native(malformed=("<tool_call>{",))
    with pytest.raises(CallError, match=r"^Empty tool name in action: .*cut off"):
        _native(truncated=True)
    with pytest.raises(CallError, match=r"^Empty tool name in action: the reply holds no tool call"):
        parse_call(Reply(content='<tool_call>{"name": "eval"}</tool_call>', node=None), native=True)


def test_last_complete_text_call_counts():
    call = '<tool_call>\n{"name": "view", "arguments": {"path": "a.py"}}\n</tool_call>'
    assert _text(f'<tool_call>{{"name": "eval"}}</tool_call> then\n{call}\n<tool_call>{{') == ToolUse(
        name="view", arguments={"path": "a.py"}
    )
    function = (
        "<function=rewrite>\n<parameter=path>a.py</parameter>\n<parameter=start>3</parameter>\n"
        "<parameter=new_code>\n    x = 1\n</parameter>\n</function>"
    )
    for content in (function, f"<tool_call>\n{function}\n</tool_call>", f"{function}<function=view>"):
        found = _text(f"I will do that.\n{content}")
        assert (found.name, found.arguments["new_code"]) == ("rewrite", "    x = 1")
        assert check_arguments(TOOLS["rewrite"], found.arguments) == {
            "path": "a.py",
            "start": 3,
            "end": None,
            "new_code": "    x = 1",
        }
    for wrong in (
        "nothing",
        "<tool_call></tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "</tool_call><tool_call>",
        "<function=></function>",
    ):
        with pytest.raises(CallError, match=r"^Empty tool name in action: "):
            _text(wrong)


@given(FREE, st.sampled_from(list(TOOLS)), st.dictionaries(FREE, FREE | st.integers() | st.none()))
def test_json_call_round_trips_through_text(before: str, name: str, arguments: dict[str, Any]):
    call = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")
    assert _text(f"{before}<tool_call>{call}</tool_call>") == ToolUse(name=name, arguments=arguments)


@given(st.text(st.sampled_from('<tool_call>/{}"name:rgumets=function parete[1]'), max_size=80))
def test_any_text_is_a_call_or_a_call_error(text: str):
    with contextlib.suppress(CallError):
        assert _text(text).name


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("view", {}, "'path' is missing"),
        ("view", {"path": None}, "'path' is missing"),
        ("view", {"path": 3}, "'path' must be text"),
        ("view", {"path": "a", "line": 3}, "there is no argument 'line'"),
        ("view", {"path": "a", "start": "three"}, "'start' must be a number"),
        ("view", {"path": "a", "start": 1.5}, "'start' must be a number"),
        ("view", {"path": "a", "start": True}, "'start' must be a number"),
        ("view", {"path": "a", "start": "inf"}, "'start' must be a number"),
        ("view", {"path": "a", "include_line_numbers_and_breakpoints": 3}, "must be true or false"),
        ("pdb", {"command": "start", "runner": "node", "file": "a"}, "must be 'python' or 'pytest'"),
        ("eval", {"path": "a"}, "it takes: none"),
        ("eval", "text", "they must be an object, not str"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(tool: str, arguments: Any, expected: str):
    with pytest.raises(CallError, match=expected):
        check_arguments(TOOLS[tool], arguments)


def test_text_values_are_converted():
    values = {"path": "a", "start": "3", "end": "none", "include_line_numbers_and_breakpoints": "False"}
    assert check_arguments(TOOLS["view"], values) == {
        "path": "a",
        "start": 3,
        "end": None,
        "include_line_numbers_and_breakpoints": False,
    }
