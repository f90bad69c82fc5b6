"""A rollout as a session of the Hugging Face Hub's trace viewer (Session Trace Simple Format).

The first line is the session, each further line one message. Repeated parts of a history that the agent began
again are left out.
"""

from __future__ import annotations

import json
from typing import Any

from hone.integrations.conversation import Step, clean, conversation
from hone.rollout.trajectory_files import turn_starts
from hone.types import Trajectory

Json = dict[str, Any]
HARNESS = "hone"


def to_hf_trace(trajectory: Trajectory, *, model_name: str | None = None) -> list[Json]:
    """Return the lines of a rollout's session, each as JSON."""
    session = {
        "type": "session",
        "harness": HARNESS,
        "id": clean(trajectory.rollout_id),
        "name": clean(trajectory.task_id),
        "agent": clean(trajectory.sampler.agent),
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
    }
    starts = dict(zip([turn.index for turn in trajectory.turns], turn_starts(trajectory), strict=True))
    messages: list[Json] = []
    for step in conversation(trajectory):
        if step.copied:
            continue
        message = _message(step)
        if step.role == "assistant" and model_name is not None:
            message["model"] = model_name
        if step.turn is not None and trajectory.started_at is not None:
            message["timestamp"] = round(starts[step.turn.index] * 1000)
        messages += [message, *_results(step)]
    return [session, *({"type": "message", "message": message} for message in messages)]


def _message(step: Step) -> Json:
    message: Json = {"role": step.role, "content": step.text}
    if step.reasoning:
        message["reasoningContent"] = step.reasoning
    if step.calls:
        message["toolCalls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in step.calls
        ]
    return message


def _results(step: Step) -> list[Json]:
    return [
        {"role": "user", "content": result.text}
        if result.call_id is None
        else {"role": "tool", "toolCallId": result.call_id, "content": result.text}
        for result in step.results
    ]
