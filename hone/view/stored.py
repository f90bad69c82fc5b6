"""What the table of rollouts needs of a stored rollout, read from its `meta.json` once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.outcomes import OUTCOME_RULES, Outcome

WORK = ("start", "agent", "patch", "close", "grade")  # stages in which a rollout holds a sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Facts of one stored rollout that no ledger has."""

    rollout_id: str
    task_id: str
    group_id: str
    index: int
    outcome: Outcome
    reward: float | None
    resolved: bool  # whether the task counts as resolved, see `hone.rollout.rewards.solved`
    tampered: bool
    turns: int
    sampled_tokens: int
    forks: int
    signals: int
    seconds: float  # for which it held a sandbox
    started_at: float | None  # Unix time, s


def read_stored(directory: Path) -> Stored | None:
    """Return the facts of the rollout in `directory`; None when it is missing or damaged."""
    try:
        return _facts(json.loads((directory / "meta.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _facts(meta: Mapping[str, Any]) -> Stored:
    more: Mapping[str, Any] = meta["sample_metadata"]
    outcome = Outcome(meta["outcome"])
    calls = more.get("calls") or ()
    timings: Mapping[str, float] = meta["timings"]
    return Stored(
        rollout_id=meta["rollout_id"],
        task_id=meta["instance_id"],
        group_id=meta["group_id"],
        index=meta["index"],
        outcome=outcome,
        reward=meta["reward"],
        resolved=outcome is Outcome.RESOLVED
        or (OUTCOME_RULES[outcome].graded and meta.get("resolved", False)),
        tampered=bool(meta.get("tampered")) or outcome is Outcome.TAMPERED,
        turns=meta.get("turns", sum(call["purpose"] == "main" for call in calls)),
        sampled_tokens=meta.get("sampled_tokens", sum(call["sampled_tokens"] for call in calls)),
        forks=sum((more.get("forks") or {}).values()),
        signals=len(more.get("signals") or ()),
        seconds=sum(timings.get(stage, 0.0) for stage in WORK),
        started_at=more.get("started_at"),
    )
