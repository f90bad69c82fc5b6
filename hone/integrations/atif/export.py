"""A rollout as an ATIF document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hone import __version__
from hone.integrations.atif.nodes import Placement, place, to_metrics, to_rest
from hone.integrations.atif.schema import FORMAT, SCHEMA, AtifError
from hone.integrations.conversation import Step, clean, conversation
from hone.policy.messages import enveloped
from hone.rollout.trajectory_files import to_record, turn_starts
from hone.types import Call, Trajectory

Json = dict[str, Any]
_NOTE = (
    "`prompt_token_ids` of a step is its whole prompt. Where it is missing, the prompt is the tokens of the "
    "nodes above `metrics.extra.nodes`, then `metrics.extra.new_prompt_token_ids`."
)
_OTHER_CALL = "A call beside the agent's own turns: its tokens are recorded, its text is not."
# Lone surrogates, which UTF-8 cannot hold, and the character that escapes them
_UNWRITABLE = re.compile("[\ud800-\udfff\ufffd]")
_ESCAPED = re.compile("\ufffd([0-9a-f]{4})")


def to_atif(trajectory: Trajectory, *, model_name: str | None = None) -> Json:
    """Return the ATIF document of a rollout, which `json.dumps` takes; `from_atif` reads it back.

    Raises AtifError for a rollout that holds a number which JSON cannot write.
    """
    placement = place(trajectory.tree, [(turn.index, turn.node) for turn in trajectory.turns])
    steps = _steps(trajectory, placement)
    agent = _without_none(
        {
            "name": clean(trajectory.sampler.agent) or "hone",
            "version": __version__,
            "model_name": model_name,
            "tool_definitions": escape(enveloped(trajectory.tools)),
        }
    )
    identity = {"schema_version": SCHEMA, "session_id": clean(trajectory.rollout_id)}
    others = [
        {**identity, "trajectory_id": _call_id(trajectory, node), "agent": agent, "steps": [step]}
        for node, step in _other_calls(trajectory, placement).items()
    ]
    record = {"format": FORMAT, "trajectory": to_record(trajectory)}
    rest = [to_rest(trajectory.tree, index) for index in placement.rest]
    document: Json = {
        **identity,
        "trajectory_id": clean(trajectory.rollout_id),
        "agent": agent,
        "steps": steps,
        "notes": _NOTE if placement.prompts else None,
        "final_metrics": _final_metrics(trajectory, len(steps)),
        "subagent_trajectories": others or None,
        "extra": {"hone": {**escape(record), "nodes": rest}},
    }
    return _without_none(document)


def _steps(trajectory: Trajectory, placement: Placement) -> list[Json]:
    """Return the steps of the conversation, with references to the calls beside it."""
    starts = dict(zip([turn.index for turn in trajectory.turns], turn_starts(trajectory), strict=True))
    calls = {call.node: call for call in trajectory.calls if call.node is not None}
    left = dict(placement.main)  # so that each node is in one step, even if two turns have one index
    steps: list[Json] = []
    for shown in conversation(trajectory) or [
        Step(role="system", text=clean(trajectory.error or "No message."))
    ]:
        written = _message(shown)
        if shown.turn is not None:
            node = left.pop(shown.turn.index, None)
            call = None if node is None else calls.get(node)
            metrics = None if node is None else to_metrics(trajectory.tree, node, placement.prompts[node])
            scripted = trajectory.sampler.engine is None and metrics is None and shown.reasoning is None
            written |= {
                "timestamp": _timestamp(trajectory, starts[shown.turn.index]),
                "metrics": metrics,
                "llm_call_count": 0 if scripted else 1,
                "extra": _turn_extra(shown, call, trajectory.turn_rewards),
            }
        steps.append({"step_id": len(steps) + 1, **_without_none(written)})
    _refer_to_other_calls(trajectory, placement, steps)
    return steps


def _message(step: Step) -> Json:
    """Return the part of a step that people read."""
    results = [
        _without_none({"source_call_id": result.call_id, "content": result.text}) for result in step.results
    ]
    calls = [
        {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
        for call in step.calls
    ]
    return {
        "source": "agent" if step.role == "assistant" else step.role,
        "message": step.text,
        "reasoning_content": step.reasoning,
        "tool_calls": calls or None,
        "observation": {"results": results} if results else None,
        "is_copied_context": step.copied or None,
    }


def _turn_extra(step: Step, call: Call | None, rewards: Mapping[int, float]) -> Json:
    assert step.turn is not None
    extra = {
        "turn": step.turn.index,
        "exit_code": step.turn.exit_code,
        "seconds": step.turn.seconds,
        "reward": rewards.get(step.turn.index),
        "fork": None if call is None else call.fork,
    }
    return escape(_without_none(extra))


def _other_calls(trajectory: Trajectory, placement: Placement) -> dict[int, Json]:
    """Return the step of each sampled node that no turn has."""
    calls = {call.node: call for call in trajectory.calls if call.node is not None}
    found: dict[int, Json] = {}
    for node in placement.others:
        call = calls.get(node)
        known = {} if call is None else {"purpose": call.purpose, "fork": call.fork, "seconds": call.seconds}
        found[node] = {
            "step_id": 1,
            "source": "agent",
            "message": _OTHER_CALL,
            "llm_call_count": 1,
            "metrics": to_metrics(trajectory.tree, node, placement.prompts[node]),
            "extra": escape(_without_none(known)),
        }
    return found


def _refer_to_other_calls(trajectory: Trajectory, placement: Placement, steps: list[Json]) -> None:
    """Add references to the calls that no turn has, at the turn whose reply came before them."""
    by_turn = {step["extra"]["turn"]: step for step in steps if "extra" in step}
    turns = {node: turn for turn, node in placement.main.items()}
    order = [call.node for call in trajectory.calls if call.node is not None]
    current, referred = steps[0], set[int]()
    for node in (*order, *placement.others):
        if node in turns:
            current = by_turn.get(turns[node], current)
        elif node in placement.others and node not in referred:
            referred.add(node)
            reference = {"trajectory_id": _call_id(trajectory, node)}
            observation = current.setdefault("observation", {"results": []})
            observation["results"].append({"subagent_trajectory_ref": [reference]})


def _call_id(trajectory: Trajectory, node: int) -> str:
    return f"{clean(trajectory.rollout_id)}/node-{node}"


def _final_metrics(trajectory: Trajectory, steps: int) -> Json:
    prompt = sum(call.prompt_tokens for call in trajectory.calls)
    sampled = sum(call.sampled_tokens for call in trajectory.calls)
    known = {"total_prompt_tokens": prompt, "total_completion_tokens": sampled} if trajectory.calls else {}
    extra = {"outcome": trajectory.outcome.value, "reward": trajectory.reward}
    return {**known, "total_steps": steps, "extra": extra}


def _timestamp(trajectory: Trajectory, seconds: float) -> str | None:
    """Return a Unix time as ISO 8601; None: the agent never began, or the year is none that ISO 8601 has."""
    if trajectory.started_at is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def escape(value: Any) -> Any:
    """Return `value` as JSON that UTF-8 can hold; `unescape` reverses it. Raises AtifError for nan."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise AtifError("the rollout holds a number that is not finite, which JSON cannot write") from None
    return json.loads(_UNWRITABLE.sub(lambda found: f"\ufffd{ord(found[0]):04x}", text))


def unescape(value: Any) -> Any:
    """Return what `escape` was given."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))


def _without_none(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
