"""Which tasks of a run gave an algorithm with a group baseline no signal."""

from __future__ import annotations

from collections.abc import Iterable

from hone.outcomes import Outcome
from hone.rollout.ledger import Entry


def describe_equal_rewards(entries: Iterable[Entry]) -> str | None:
    """Return how many tasks had equal rewards within each group, and of which kinds; None if none had.

    Only groups that a step consumed count. Example: "5 of 8: 3 resolved in every rollout, 2 in none".
    """
    groups: dict[str, dict[str, list[Entry]]] = {}  # task -> group -> its rollouts
    for entry in entries:
        if entry.step is not None:
            groups.setdefault(entry.task_id, {}).setdefault(entry.group_id, []).append(entry)
    silent = [
        [entry for group in groups_of_task.values() for entry in group]
        for groups_of_task in groups.values()
        if all(len({entry.reward for entry in group}) == 1 for group in groups_of_task.values())
    ]
    if not silent:
        return None
    resolved = [{entry.outcome is Outcome.RESOLVED for entry in task} for task in silent]
    counts = {
        "resolved in every rollout": sum(each == {True} for each in resolved),
        "in none": sum(each == {False} for each in resolved),
        "in all of some groups": sum(len(each) == 2 for each in resolved),
    }
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{len(silent)} of {len(groups)}: {kinds}"
