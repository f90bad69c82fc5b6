"""What the rows of a ledger tell of the attempts so far."""

from __future__ import annotations

from hone.outcomes import Outcome
from hone.rollout.history import read_history
from hone.rollout.ledger import Entry


def row(group: str, index: int, reward: float | None, step: int | None = 0) -> Entry:
    return Entry(
        rollout_id=f"{group}-{index}",
        group_id=group,
        index=index,
        position=0,
        task_id=f"task of {group}",
        sampled_version=0,
        dispatched_at=10.0,
        ended_at=14.0,
        outcome=Outcome.RESOLVED,
        reward=reward,
        directory=None,
        disposition=None,
        reason=None,
        step=step,
    )


def test_groups_gave_a_signal_where_their_rewards_differed() -> None:
    rows = [row("same", 0, 1.0), row("same", 1, 1.0), row("other", 0, 1.0), row("other", 1, -1.0)]
    open_rows = [row("open", 0, 1.0, step=None), row("open", 1, -1.0, step=None)]
    history = read_history([*rows, *open_rows])
    assert history.signals() == [("task of same", False), ("task of other", True)]
    assert history.oldest_versions() == {0: 0}
    assert history.expected_seconds("task of same") == 4.0
