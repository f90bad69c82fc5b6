"""What the ledger says about the groups that an earlier process of the run began."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from hone.outcomes import Outcome
from hone.rollout.ledger import SET_ASIDE, Entry, SetAside
from hone.rollout.rewards import is_infrastructure_fault

ZERO_VARIANCE = "constant"  # the ledger's reason for dropping a group whose rewards are all equal
ROLLED_BACK = "rolled_back"  # its reason for dropping what weights that a kill has lost sampled
Key = tuple[str, int]  # group id, index in the group


@dataclass(slots=True, kw_only=True)
class History:
    """The attempts at every rollout so far; kept up to date while the run goes on."""

    consumed: set[int] = field(default_factory=set[int])  # positions that a step has trained
    trained: set[str] = field(default_factory=set[str])  # their groups
    open: dict[Key, Entry] = field(
        default_factory=dict[Key, Entry]
    )  # ended rollouts that wait for their step
    tasks: dict[str, str] = field(default_factory=dict[str, str])  # group id -> task id
    spent: dict[str, str] = field(default_factory=dict[str, str])  # group id -> why it was dropped
    attempts: Counter[Key] = field(default_factory=Counter[Key])
    faults: Counter[Key] = field(default_factory=Counter[Key])  # of these attempts
    rewards: dict[str, set[float]] = field(default_factory=lambda: defaultdict(set))  # of each group
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by task id
    _ended: Counter[str] = field(default_factory=Counter[str])  # rollouts that took them

    def add_ended(self, task_id: str, seconds: float) -> None:
        self._seconds[task_id] += seconds
        self._ended[task_id] += 1

    def expected_seconds(self, task_id: str) -> float:
        """Return the mean duration of a task's rollouts so far; 0 before the first."""
        return self._seconds[task_id] / max(1, self._ended[task_id])

    def oldest_versions(self) -> dict[int, int]:
        """Return position -> the version of its oldest open rollout."""
        oldest: dict[int, int] = {}
        for entry in self.open.values():
            known = oldest.get(entry.position, entry.sampled_version)
            oldest[entry.position] = min(known, entry.sampled_version)
        return oldest

    def signals(self) -> list[tuple[str, bool]]:
        """Return the task of each group that was complete, and whether its rewards differed, in order."""
        replaced = {group_id for group_id, why in self.spent.items() if why == ZERO_VARIANCE}
        return [
            (task_id, len(self.rewards[group_id]) > 1)
            for group_id, task_id in self.tasks.items()
            if group_id in replaced or group_id in self.trained
        ]


def read_history(entries: Iterable[Entry], tasks_set_aside: Iterable[SetAside] = ()) -> History:
    """Return the history that the rows of a ledger tell, in order of dispatch."""
    history = History()
    for entry in entries:
        key = entry.group_id, entry.index
        history.tasks[entry.group_id] = entry.task_id
        history.attempts[key] += 1
        history.faults[key] += is_fault(entry.outcome)
        if entry.reason == ZERO_VARIANCE:
            history.spent[entry.group_id] = ZERO_VARIANCE
        if entry.step is not None:
            history.consumed.add(entry.position)
            history.trained.add(entry.group_id)
        elif entry.outcome is not None and entry.disposition is None:
            history.open[key] = entry
        if entry.reward is not None:
            history.rewards[entry.group_id].add(entry.reward)
        if entry.ended_at is not None and entry.outcome is not Outcome.CANCELLED:
            history.add_ended(entry.task_id, entry.ended_at - entry.dispatched_at)
    history.spent |= {each.group_id: SET_ASIDE for each in tasks_set_aside}
    return history


def is_fault(outcome: Outcome | None) -> bool:
    """Return whether an attempt ended in an infrastructure fault of its own, not with the run."""
    return outcome is not None and outcome is not Outcome.CANCELLED and is_infrastructure_fault(outcome)
