"""Convert a trajectory to the files of its directory and back; only this module knows their keys.

traj.json       messages, step_debug, info, turns: read by people and other tools
patch.diff      the patch, byte for byte
meta.json       task, group, outcome, timings, scores, calls, settings of the sampler
verdict.json    the grader's findings; it names hidden tests, so do not publish it with the rest
tokens.parquet  one row per token of the tree: node, parent, sampled, turn, token, logprob, version
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from hone.outcomes import Outcome
from hone.rollout.tokens import from_parquet, to_parquet
from hone.types import (
    Call,
    FinalScore,
    Judgement,
    ProgressScores,
    ProgressStatus,
    Sampler,
    Scores,
    Signal,
    TestStatus,
    Trajectory,
    Turn,
    TurnProgress,
    Verdict,
    Vote,
)

FORMAT = "hone-trajectory-1"
SHOWN = 2000  # characters of an output's head and tail in step_debug
_FIELDS = frozenset(  # keys of sample_metadata that are fields of a trajectory; the rest are notes
    (
        *("agent", "engine", "sampling", "trainable", "seed", "started_at", "enforced", "tools"),
        *("calls", "forks", "signals", "prm", "progress", "reward"),
    )
)

Json = dict[str, Any]


def encode(trajectory: Trajectory, position: Mapping[str, Any]) -> dict[str, bytes]:
    """Return file name -> content. `position` holds `group_index`, `index` and further keys for meta.json."""
    verdict = None if trajectory.verdict is None else asdict(trajectory.verdict)
    traj = {
        "messages": list(trajectory.messages),
        "step_debug": _step_debug(trajectory),
        "info": _info(trajectory, position),
        "trajectory_format": FORMAT,
        "turns": [asdict(turn) for turn in trajectory.turns],
    }
    return {
        "traj.json": _dump(traj),
        "patch.diff": trajectory.patch.encode("utf-8", "surrogatepass"),
        "meta.json": _dump({**position, **_meta(trajectory)}),
        "verdict.json": _dump(verdict),
        "tokens.parquet": to_parquet(trajectory.tree),
    }


def decode(read: Callable[[str], bytes]) -> Trajectory:
    """Return the trajectory whose files `read(name)` returns, bit for bit as it was encoded.

    Raises ValueError, KeyError or TypeError when a file is damaged or of another format.
    """
    traj, meta, verdict = (json.loads(read(name)) for name in ("traj.json", "meta.json", "verdict.json"))
    if traj["trajectory_format"] != FORMAT:
        raise ValueError(f"format {traj['trajectory_format']!r} is not {FORMAT!r}")
    more: Json = meta["sample_metadata"]
    return Trajectory(
        task_id=meta["instance_id"],
        rollout_id=meta["rollout_id"],
        group_id=meta["group_id"],
        tree=from_parquet(read("tokens.parquet")),
        turns=tuple(Turn(**turn) for turn in traj["turns"]),
        messages=tuple(traj["messages"]),
        patch=read("patch.diff").decode("utf-8", "surrogatepass"),
        outcome=Outcome(meta["outcome"]),
        reward=meta["reward"],
        verdict=None if verdict is None else _verdict(**verdict),
        error=meta["error"],
        timings=meta["timings"],
        turn_rewards={int(index): reward for index, reward in meta["turn_rewards"].items()},
        scores=_scores(more),
        sampler=Sampler(
            agent=more.get("agent", ""),
            engine=more.get("engine"),
            sampling=more.get("sampling") or {},
            trainable=more.get("trainable", False),
        ),
        seed=more.get("seed"),
        started_at=more.get("started_at"),
        tools=tuple(more.get("tools", ())),
        calls=tuple(Call(**call) for call in more.get("calls", ())),
        forks=more.get("forks", {}),
        signals=tuple(Signal(**signal) for signal in more.get("signals", ())),
        enforced_limits=more.get("enforced", {}),
        notes={name: value for name, value in more.items() if name not in _FIELDS},
    )


def _meta(trajectory: Trajectory) -> Json:
    more = {
        **trajectory.notes,
        **asdict(trajectory.sampler),
        "seed": trajectory.seed,
        "started_at": trajectory.started_at,
        "enforced": dict(trajectory.enforced_limits),
        "tools": list(trajectory.tools),
        "calls": [asdict(call) for call in trajectory.calls],
        "forks": dict(trajectory.forks),
        "signals": [asdict(signal) for signal in trajectory.signals],
        **_scores_json(trajectory.scores),
    }
    return {
        "instance_id": trajectory.task_id,
        "rollout_id": trajectory.rollout_id,
        "group_id": trajectory.group_id,
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
        "error": trajectory.error,
        "turn_rewards": {str(index): reward for index, reward in trajectory.turn_rewards.items()},
        "timings": dict(trajectory.timings),
        "sampling_params": dict(trajectory.sampler.sampling) or None,
        "sample_prompt": list(trajectory.messages[:2]),
        "sample_metadata": more,
    }


def _info(trajectory: Trajectory, position: Mapping[str, Any]) -> Json:
    return {
        "instance_id": trajectory.task_id,
        "exit_status": trajectory.outcome.value,
        "error": trajectory.error,
        "steps": len(trajectory.turns),
        "patch_source": "git_diff" if trajectory.patch.strip() else None,
        "reward": trajectory.reward,
        "eval_result": None if trajectory.verdict is None else {"resolved": trajectory.verdict.resolved},
        "group_index": position["group_index"],
        "index": position["index"],
    }


def _step_debug(trajectory: Trajectory) -> list[Json]:
    """Return an entry per turn that ran a command; times add up the lengths of the turns before it."""
    entries: list[Json] = []
    clock = trajectory.started_at or 0.0
    for turn in trajectory.turns:
        start, clock = clock, clock + turn.seconds
        if turn.action is None:
            continue
        entries.append(
            {
                "step_idx": turn.index,
                "action": turn.action,
                "returncode": turn.exit_code,
                "output_len": len(turn.observation),
                "output_head": turn.observation[:SHOWN],
                "output_tail": turn.observation[SHOWN:][-SHOWN:],  # never overlaps the head
                "start_ts": start,
                "end_ts": clock,
                "ok": turn.exit_code == 0,
            }
        )
    return entries


def _scores_json(scores: Scores) -> Json:
    blocks: Json = {}
    if scores.judgements is not None:
        means = [judgement.score for judgement in scores.judgements]
        blocks["prm"] = {
            "enabled": True,
            "step_scores": means,
            "step_mean_score": sum(means) / len(means) if means else 0.0,
            "step_details": [_judgement_json(judgement) for judgement in scores.judgements],
        }
    if scores.progress is not None:
        blocks["progress"] = {"enabled": True, **asdict(scores.progress)}
    if scores.final is not None:
        blocks["reward"] = asdict(scores.final)
    return blocks


def _judgement_json(judgement: Judgement) -> Json:
    return {
        "status": judgement.status.value,
        "step_index": judgement.step_index,
        "scores": [vote.score for vote in judgement.votes],
        "valid_scores": judgement.valid_scores,
        "valid_vote_count": len(judgement.valid_scores),
        "mean_score": judgement.score,
        "votes": [asdict(vote) for vote in judgement.votes],
    }


def _scores(more: Json) -> Scores:
    prm, progress, final = (more.get(name) for name in ("prm", "progress", "reward"))
    return Scores(
        judgements=None if prm is None else tuple(_judgement(step) for step in prm["step_details"]),
        progress=None if progress is None else _progress(progress),
        final=None if final is None else FinalScore(**final),
    )


def _judgement(step: Json) -> Judgement:
    return Judgement(step_index=step["step_index"], votes=tuple(Vote(**vote) for vote in step["votes"]))


def _progress(block: Json) -> ProgressScores:
    return ProgressScores(
        initial_score=block["initial_score"],
        steps=tuple(_turn_progress(**step) for step in block["steps"]),
    )


def _turn_progress(status: str, **fields: Any) -> TurnProgress:
    return TurnProgress(status=ProgressStatus(status), **fields)


def _verdict(tests: dict[str, str], **fields: Any) -> Verdict:
    return Verdict(tests={name: TestStatus(status) for name, status in tests.items()}, **fields)


def _dump(value: object) -> bytes:
    return json.dumps(value).encode("ascii")  # escapes keep lone surrogates, which UTF-8 cannot
