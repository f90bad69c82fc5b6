"""A rollout as OpenTelemetry spans, in OTLP's JSON encoding and the semantic conventions for generative AI.

    invoke_agent AGENT                the rollout: outcome, reward, tokens
        chat MODEL                    one call to the policy: tokens, finish reason
        execute_tool NAME             one tool call of a turn

The spans hold no text of the conversation. A turn is taken to begin where the one before it ended, and a call
beside the agent's own turns stands there, too: a rollout records lengths, not times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hone import __version__
from hone.integrations.conversation import clean, conversation
from hone.outcomes import OUTCOME_RULES, Fault
from hone.rollout.trajectory_files import turn_starts
from hone.types import Call, Trajectory

Json = dict[str, Any]
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
_INTERNAL, _CLIENT = 1, 3  # span kinds
_ERROR = 2  # status code
_REQUEST = ("temperature", "top_p", "top_k", "max_tokens")  # of `Sampler.sampling`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    operation: str
    of: str | None  # the agent, model or tool; follows the operation in the span's name
    start: float  # Unix time, s
    end: float
    kind: int = _INTERNAL
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # None: left out
    error: str | None = None


def to_otel(trajectory: Trajectory, *, model_name: str | None = None) -> Json | None:
    """Return the spans of a rollout as one OTLP `TracesData`; None: the agent never began.

    The ids are hashes of the rollout's identity, so a second export gives the same ids.
    """
    if trajectory.started_at is None:
        return None
    spans = [
        _rollout(trajectory, trajectory.started_at, model_name),
        *_chats(trajectory, trajectory.started_at, model_name),
        *_tools(trajectory),
    ]
    identity = f"{trajectory.rollout_id}\n{trajectory.group_id}\n{trajectory.started_at!r}"
    root = _hash(f"{identity}\n0", 8)
    written = [
        {
            "traceId": _hash(identity, 16),
            "spanId": _hash(f"{identity}\n{number}", 8),
            **({"parentSpanId": root} if number else {}),
            **_otlp(span, trajectory),
        }
        for number, span in enumerate(spans)
    ]
    scope = {"name": "hone", "version": __version__}
    resource = {"service.name": "hone", "service.version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": written, "schemaUrl": SCHEMA_URL}],
                "schemaUrl": SCHEMA_URL,
            }
        ]
    }


def _rollout(trajectory: Trajectory, start: float, model_name: str | None) -> _Span:
    seconds = trajectory.timings.get("agent", sum(turn.seconds for turn in trajectory.turns))
    fault = OUTCOME_RULES[trajectory.outcome].fault is Fault.INFRASTRUCTURE
    outcome = trajectory.outcome.value
    return _Span(
        operation="invoke_agent",
        of=trajectory.sampler.agent or None,
        start=start,
        end=start + seconds,
        attributes={
            "gen_ai.agent.name": trajectory.sampler.agent or None,
            "gen_ai.request.model": model_name,
            "gen_ai.usage.input_tokens": sum(call.prompt_tokens for call in trajectory.calls),
            "gen_ai.usage.output_tokens": sum(call.sampled_tokens for call in trajectory.calls),
            "error.type": outcome if fault else None,
            "hone.task.id": trajectory.task_id,
            "hone.group.id": trajectory.group_id,
            "hone.outcome": outcome,
            "hone.reward": trajectory.reward,
            **{f"hone.timings.{phase}": length for phase, length in trajectory.timings.items()},
        },
        error=(trajectory.error or outcome) if fault else None,
    )


def _chats(trajectory: Trajectory, started_at: float, model_name: str | None) -> Iterator[_Span]:
    sampler = trajectory.sampler
    request = {f"gen_ai.request.{name}": sampler.sampling.get(name) for name in _REQUEST}
    turns = {turn.node: index for index, turn in enumerate(trajectory.turns) if turn.node is not None}
    starts, now = turn_starts(trajectory), started_at
    for call in trajectory.calls:
        index = None if call.node is None else turns.get(call.node)
        start = now if index is None else starts[index]
        now = start if index is None else start + trajectory.turns[index].seconds
        yield _Span(
            operation="chat",
            of=model_name,
            start=start,
            end=start + call.seconds,
            kind=_INTERNAL if sampler.engine == "local" else _CLIENT,
            attributes={
                "gen_ai.request.model": model_name,
                **request,
                "gen_ai.usage.input_tokens": call.prompt_tokens,
                "gen_ai.usage.output_tokens": call.sampled_tokens,
                "gen_ai.response.finish_reasons": _finish(call, sampler.sampling.get("max_tokens")),
                "hone.call.purpose": call.purpose,
                "hone.call.fork": call.fork,
            },
        )


def _finish(call: Call, max_tokens: int | None) -> list[str] | None:
    """Return why a reply ended, as its length tells; None: the limit of its length is not known."""
    if max_tokens is None:
        return None
    return ["length" if call.sampled_tokens >= max_tokens else "stop"]


def _tools(trajectory: Trajectory) -> Iterator[_Span]:
    """Yield a span for each tool call of a turn, from the policy's reply to the end of the turn."""
    starts = dict(zip([turn.index for turn in trajectory.turns], turn_starts(trajectory), strict=True))
    replied: dict[int | None, float] = {
        call.node: call.seconds for call in trajectory.calls if call.node is not None
    }
    for step in conversation(trajectory):
        turn = step.turn
        if turn is None or turn.action is None:
            continue
        start, end = starts[turn.index], starts[turn.index] + turn.seconds
        for use in step.calls:
            yield _Span(
                operation="execute_tool",
                of=use.name or None,
                start=min(start + replied.get(turn.node, 0.0), end),
                end=end,
                attributes={
                    "gen_ai.tool.name": use.name,
                    "gen_ai.tool.call.id": use.id,
                    "gen_ai.tool.type": "function",
                    "hone.exit_code": turn.exit_code,
                },
            )


def _otlp(span: _Span, trajectory: Trajectory) -> Json:
    shared = {
        "gen_ai.operation.name": span.operation,
        "gen_ai.provider.name": trajectory.sampler.engine or "hone",
        "gen_ai.conversation.id": trajectory.rollout_id,
    }
    status = {"status": {"code": _ERROR, "message": clean(span.error)}} if span.error is not None else {}
    return {
        "name": clean(f"{span.operation} {span.of}") if span.of else span.operation,
        "kind": span.kind,
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(span.end),
        "attributes": _attributes({**shared, **span.attributes}),
        **status,
    }


def _attributes(values: Mapping[str, Any]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> Json:
    """Return an attribute's value in OTLP's JSON encoding, which writes 64-bit integers as text."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": clean(str(value))}


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e9))


def _hash(text: str, size: int) -> str:
    return hashlib.sha256(clean(text).encode()).hexdigest()[: 2 * size]
