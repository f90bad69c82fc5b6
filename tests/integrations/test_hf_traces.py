"""Agent traces: the lines that the Hugging Face Hub's viewer reads."""

from __future__ import annotations

import json

from hone.integrations.hf_traces import to_hf_trace
from tests.integrations.test_atif import forked
from tests.rollout.test_store import example


def test_first_line_is_the_session() -> None:
    session = to_hf_trace(example())[0]
    assert session == {
        "type": "session",
        "harness": "hone",
        "id": "s0g1-2",
        "name": "org/repo-1",
        "agent": "",
        "outcome": "resolved",
        "reward": 1.0,
    }


def test_each_further_line_is_a_message() -> None:
    lines = to_hf_trace(forked(), model_name="m")[1:]
    assert {line["type"] for line in lines} == {"message"}
    messages = [line["message"] for line in lines]
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "user", "assistant", "tool",
    ]  # fmt: skip
    assert messages[2] == {
        "role": "assistant",
        "content": "one",
        "toolCalls": [{"id": "call_0", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
        "model": "m",
        "timestamp": 100_000,
    }
    assert messages[3] == {"role": "tool", "toolCallId": "call_0", "content": "x"}
    assert messages[4]["timestamp"] == 101_000  # ms


def test_repeated_history_is_left_out() -> None:
    text = json.dumps(to_hf_trace(forked()))
    assert (text.count('"content": "two"'), text.count('"content": "S"')) == (1, 1)


def test_rollout_that_never_began_is_a_session_alone() -> None:
    lines = to_hf_trace(example(turns=(), messages=(), started_at=None))
    assert [line["type"] for line in lines] == ["session"]
