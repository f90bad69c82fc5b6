"""OpenTelemetry spans: names, ids, times and attributes as OTLP's JSON encoding writes them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from hone.integrations.otel import to_otel
from hone.outcomes import Outcome
from hone.types import Sampler, Trajectory
from tests.integrations.test_atif import call, forked
from tests.rollout.test_store import example


def spans(trajectory: Trajectory, **more: Any) -> list[dict[str, Any]]:
    data = to_otel(trajectory, **more)
    assert data is not None
    ((resource,),) = data.values()
    (scope,) = resource["scopeSpans"]
    return scope["spans"]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def timed() -> Trajectory:
    sampling = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_tokens": 2, "stop_token_ids": [2]}
    sampler = Sampler(agent="blackbox", engine="vllm", sampling=sampling)
    return dataclasses.replace(forked(), sampler=sampler, timings={"agent": 4.0, "grade": 0.25})


def test_rollout_is_a_tree_of_spans() -> None:
    found = spans(timed(), model_name="Qwen3-8B")
    root, *children = found
    assert [span["name"] for span in found] == [
        "invoke_agent blackbox",
        *["chat Qwen3-8B"] * 4,
        *["execute_tool bash"] * 3,
    ]
    assert "parentSpanId" not in root
    assert {span["parentSpanId"] for span in children} == {root["spanId"]}
    assert {span["traceId"] for span in found} == {root["traceId"]}
    assert len({span["spanId"] for span in found}) == len(found)
    assert all(re.fullmatch("[0-9a-f]{16}", span["spanId"]) for span in found)
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"])


def test_times_are_nanoseconds_as_text_in_the_order_of_the_turns() -> None:
    root, first, side, second, third, tool, *_ = spans(timed())
    times = [(int(each["startTimeUnixNano"]), int(each["endTimeUnixNano"])) for each in (root, first, side)]
    assert times == [
        (100 * 10**9, 104 * 10**9),
        (100 * 10**9, 100_500_000_000),
        (101 * 10**9, 101_500_000_000),
    ]
    assert [each["startTimeUnixNano"] for each in (second, third)] == ["101000000000", "102000000000"]
    assert (tool["startTimeUnixNano"], tool["endTimeUnixNano"]) == ("100500000000", "101000000000")


def test_attributes_follow_the_conventions() -> None:
    root, first, side, *_, last = spans(timed(), model_name="m")
    assert attributes(root) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "vllm",
        "gen_ai.conversation.id": "s0g1-2",
        "gen_ai.agent.name": "blackbox",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": "36",
        "gen_ai.usage.output_tokens": "8",
        "hone.task.id": "org/repo-1",
        "hone.group.id": "s0g1",
        "hone.outcome": "resolved",
        "hone.reward": 1.0,
        "hone.timings.agent": 4.0,
        "hone.timings.grade": 0.25,
    }
    assert attributes(first) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.conversation.id": "s0g1-2",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": "0",
        "gen_ai.request.max_tokens": "2",
        "gen_ai.usage.input_tokens": "9",
        "gen_ai.usage.output_tokens": "2",
        "gen_ai.response.finish_reasons": {"values": [{"stringValue": "length"}]},
        "hone.call.purpose": "main",
    }
    assert attributes(side)["hone.call.purpose"] == "side"
    assert attributes(last) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.provider.name": "vllm",
        "gen_ai.conversation.id": "s0g1-2",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.call.id": "call_2",
        "gen_ai.tool.type": "function",
        "hone.exit_code": "0",
    }


def test_shorter_reply_ended_by_itself() -> None:
    short = dataclasses.replace(call(0, 1), sampled_tokens=1)
    _, chat, *_ = spans(dataclasses.replace(timed(), calls=(short,)))
    assert attributes(chat)["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "stop"}]}


@pytest.mark.parametrize(("engine", "kind"), [("vllm", 3), ("local", 1)])
def test_engine_in_this_process_is_an_internal_span(engine: str, kind: int) -> None:
    made = dataclasses.replace(timed(), sampler=Sampler(engine=engine))
    assert [span["kind"] for span in spans(made)[:2]] == [1, kind]


def test_only_an_infrastructure_fault_is_an_error() -> None:
    failed = dataclasses.replace(timed(), outcome=Outcome.ENGINE_ERROR, reward=None, error="down")
    root = spans(failed)[0]
    assert root["status"] == {"code": 2, "message": "down"}
    assert attributes(root)["error.type"] == "engine_error"
    assert "status" not in spans(dataclasses.replace(timed(), outcome=Outcome.UNRESOLVED))[0]


def test_second_export_has_the_same_ids() -> None:
    again = dataclasses.replace(timed(), started_at=200.0)
    assert spans(timed()) == spans(timed())
    assert spans(timed())[0]["traceId"] != spans(again)[0]["traceId"]


def test_rollout_that_never_began_has_no_spans() -> None:
    assert to_otel(example(started_at=None)) is None
