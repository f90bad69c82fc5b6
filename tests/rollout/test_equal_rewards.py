"""The report of a run counts the tasks whose groups all had equal rewards."""

from __future__ import annotations

from pathlib import Path

from hone.outcomes import Outcome
from hone.rollout.equal_rewards import describe_equal_rewards
from hone.rollout.ledger import TRAINED, Ledger

RESOLVED, UNRESOLVED = Outcome.RESOLVED, Outcome.UNRESOLVED


def described(folder: Path, groups: list[tuple[str, list[Outcome]]]) -> str | None:
    """Return what is said of a run whose only step trained these groups: (task, outcomes)."""
    with Ledger.open(folder) as ledger:
        rollouts: list[str] = []
        for position, (task, outcomes) in enumerate(groups):
            for index, outcome in enumerate(outcomes):
                rollout = f"r{position}-{index}"
                place = {"group_id": f"g{position}", "index": index, "position": position}
                ledger.dispatch(rollout, **place, task_id=task, sampled_version=0)
                reward = 1.0 if outcome is RESOLVED else -1.0
                ledger.end(rollout, outcome, reward=reward, directory=rollout)
                rollouts.append(rollout)
        ledger.commit_step(0, dict.fromkeys(rollouts, TRAINED))
        return describe_equal_rewards(ledger.entries())


def test_tasks_with_equal_rewards_are_counted_by_kind(tmp_path: Path):
    mixed = ("a", [RESOLVED, UNRESOLVED])
    always, never = ("b", [RESOLVED, RESOLVED]), ("c", [UNRESOLVED, UNRESOLVED])
    by_group = [("d", [RESOLVED, RESOLVED]), ("d", [UNRESOLVED, UNRESOLVED])]
    assert described(tmp_path / "1", [mixed, always, never, *by_group]) == (
        "3 of 4: 1 resolved in every rollout, 1 in none, 1 in all of some groups"
    )
    assert described(tmp_path / "2", [mixed]) is None
    assert described(tmp_path / "3", [always, ("b", [RESOLVED, UNRESOLVED])]) is None
