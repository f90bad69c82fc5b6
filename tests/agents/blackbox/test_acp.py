"""The client's side of the Agent Client Protocol, against scripted peers in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.blackbox import acp
from hone.agents.blackbox.acp import AcpError, Conversation
from tests import virtual_time

Json = dict[str, Any]
Answers = Callable[[Json], Sequence[Json]]


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def update(variant: str, **more: object) -> Json:
    return {"method": "session/update", "params": {"update": {"sessionUpdate": variant, **more}}}


def usual(request: Json) -> Sequence[Json]:
    results: dict[str, Json] = {
        "initialize": {"protocolVersion": 1},
        "session/new": {"sessionId": "s"},
        "session/prompt": {"stopReason": "end_turn"},
    }
    result = results.get(request.get("method", ""))
    return [] if result is None else [{"id": request["id"], "result": result}]


class Peer:
    """Answers each line of the client by a function; records the lines."""

    def __init__(self, answers: Answers) -> None:
        self.lines: list[Json] = []
        self.conversation = Conversation(self._take)
        self._answers = answers

    async def _take(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        self.lines.append(json.loads(data))
        for answer in self._answers(self.lines[-1]):
            self.conversation.feed("stdout", line(answer))

    async def converse(self, seconds: float = 0.0) -> Conversation:
        await self.conversation.run(workdir="/testbed", prompt="Fix it.", seconds=seconds)
        return self.conversation


def converse(answers: Answers, seconds: float = 0.0) -> Peer:
    peer = Peer(answers)
    virtual_time.run(peer.converse(seconds))
    return peer


def on_prompt(*messages: Json) -> Answers:
    """Return a peer that sends these messages before it answers the prompt."""

    def answers(request: Json) -> Sequence[Json]:
        return [*messages, *usual(request)] if request.get("method") == "session/prompt" else usual(request)

    return answers


def test_conversation_initializes_opens_a_session_and_prompts() -> None:
    peer = converse(usual)
    assert [(sent["method"], sent["id"], sent["jsonrpc"]) for sent in peer.lines] == [
        ("initialize", 0, "2.0"),
        ("session/new", 1, "2.0"),
        ("session/prompt", 2, "2.0"),
    ]
    assert peer.lines[1]["params"] == {"cwd": "/testbed", "mcpServers": []}
    assert peer.lines[2]["params"] == {"sessionId": "s", "prompt": [{"type": "text", "text": "Fix it."}]}
    assert peer.conversation.stop_reason == "end_turn"


def test_permission_is_given_where_an_option_allows() -> None:
    options = [{"optionId": "n", "kind": "reject_once"}, {"optionId": "y", "kind": "allow_always"}]
    ask = {"id": "a", "method": "session/request_permission"}
    peer = converse(
        on_prompt({**ask, "params": {"options": options}}, {**ask, "params": {"options": options[:1]}})
    )
    outcomes = [sent["result"]["outcome"] for sent in peer.lines[3:]]
    assert outcomes == [{"outcome": "selected", "optionId": "y"}, {"outcome": "cancelled"}]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fs/read_text_file", {"path": "/etc/shadow"}),
        ("fs/write_text_file", {"path": "/testbed/../etc/passwd", "content": ""}),
        ("terminal/create", {"command": "id"}),
        ("_vendor/anything", {}),
    ],
)
def test_any_other_request_is_refused(method: str, params: Json) -> None:
    peer = converse(on_prompt({"id": 5, "method": method, "params": params}))
    assert peer.lines[3]["id"] == 5
    assert peer.lines[3]["error"]["code"] == -32601
    assert peer.lines[0]["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }


def test_notes_are_bounded() -> None:
    many = [
        update("tool_call", toolCallId=str(i), title="x" * 1000, status="pending") for i in range(500)
    ] + [update(f"kind{i}") for i in range(500)]
    notes = converse(on_prompt(*many)).conversation.notes
    assert len(notes["tool_calls"]) == 100
    assert notes["tool_calls"][0] == {"title": "x" * 200, "status": "pending"}
    assert len(notes["updates"]) <= 101
    assert sum(notes["updates"].values()) == 1000


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda r: [{"id": r["id"], "result": {"protocolVersion": 2}}], "speaks version 2"),
        (lambda r: [{"id": r["id"], "result": []}], "answer to initialize cannot be read"),
        (lambda r: [{"id": r["id"]}], "answer to initialize cannot be read"),
        (lambda r: [{"id": r["id"], "error": {"message": "no"}}], "refused initialize: no"),
        (lambda _: [{"id": 77, "result": {}}] * 50, None),
        (lambda _: [{"neither": 1}] * 101, "more than 100 lines"),
        (lambda _: [update("tool_call", toolCallId=[])] * 101, "more than 100 lines"),
        (lambda _: [{"id": i, "method": "x"} for i in range(65)], "more than 64 of its messages"),
    ],
)
def test_broken_protocol_ends_the_conversation(answers: Answers, why: str | None) -> None:
    peer = Peer(answers)
    if why is None:  # nothing came but answers to no request
        with pytest.raises(TimeoutError):
            virtual_time.run(asyncio.wait_for(peer.converse(), 10))
        assert peer.conversation.notes["malformed"] == 50
        return
    with pytest.raises(AcpError, match=why):
        virtual_time.run(peer.converse())
    assert why in peer.conversation.notes["error"]


def test_output_beyond_its_bounds_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acp, "LINE_MAX", 1000)
    monkeypatch.setattr(acp, "OUTPUT_MAX", 10_000)
    for piece, why in ((b"x" * 60, "a message has more than"), (b"x\n" * 300, "more than 100 lines")):
        conversation = Conversation(_unused)
        for _ in range(100):
            conversation.feed("stdout", piece)
        assert why in str(conversation.broken)
        assert len(b"".join(conversation._partial)) == 0
    conversation = Conversation(_unused)
    for _ in range(100):
        conversation.feed("stdout", line(update("plan")) * 5)
    assert "of messages" in str(conversation.broken)


async def _unused(_: bytes) -> None:
    raise AssertionError("nothing is sent")


def test_time_limit_cancels_and_waits_for_the_answer() -> None:
    def answers(request: Json) -> Sequence[Json]:
        if request.get("method") == "session/prompt":
            return []
        if request.get("method") == "session/cancel":
            assert request["params"] == {"sessionId": "s"}
            return [{"id": 2, "result": {"stopReason": "cancelled"}}]
        return usual(request)

    conversation = converse(answers, seconds=100.0).conversation
    assert (conversation.timed_out, conversation.stop_reason) == (True, "cancelled")


def test_agent_that_ignores_the_cancellation_is_given_up() -> None:
    peer = converse(lambda r: [] if r["method"] in ("session/prompt", "session/cancel") else usual(r), 100.0)
    assert (peer.conversation.timed_out, peer.conversation.stop_reason) == (True, None)
    assert peer.lines[-1]["method"] == "session/cancel"


MESSAGES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "method", "params", "result", "error", "update", "sessionUpdate", "message"]
            )
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(st.lists(st.binary(max_size=50) | MESSAGES.map(line), max_size=20), st.integers(1, 60))
def test_no_output_raises_and_pieces_do_not_matter(outputs: list[bytes], size: int) -> None:
    whole = b"".join(outputs)
    one, other = Conversation(_unused), Conversation(_unused)
    one.feed("stdout", whole)
    for start in range(0, len(whole), size):
        other.feed("stdout", whole[start : start + size])
    assert one.notes == other.notes
