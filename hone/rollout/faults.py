"""Which infrastructure faults a run survives: those of single tasks, which are set aside."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from hone.rollout.errors import RolloutError
from hone.rollout.ledger import SetAside

WINDOW = 16  # groups over which the share is taken
HINT = "fix that (`hone doctor` helps) and run the same command again"


class BrokenTask(Exception):
    """Every attempt at a rollout of a task ended in an infrastructure fault."""


class FaultBudget:
    """Stops a run whose infrastructure is broken, and not just some of its tasks."""

    def __init__(self, share: float) -> None:
        """`share` of the last `WINDOW` groups whose task may be set aside."""
        self._share = share
        self._last: deque[str | None] = deque(maxlen=WINDOW)

    def succeeded(self) -> None:
        self._last.append(None)

    def failed(self, reason: str) -> None:
        """Count a group whose task is set aside. Raises RolloutError when there were too many."""
        self._last.append(reason)
        reasons = [reason for reason in self._last if reason is not None]
        if len(reasons) > self._share * WINDOW:
            common, number = Counter(reasons).most_common(1)[0]
            raise RolloutError(
                f"the tasks of {len(reasons)} of the last {len(self._last)} groups were set aside for "
                f"infrastructure faults, more than rollout.fault_budget = {self._share:g} allows; {number} "
                f"for: {common}; {HINT}"
            )


class TasksSetAside:
    """The tasks that are set aside, each for one epoch, and for twice as long every further time."""

    def __init__(self, tasks: int, earlier: Iterable[SetAside] = ()) -> None:
        """`tasks`: their number, which is an epoch in positions."""
        self._tasks = tasks
        self._times: Counter[str] = Counter()
        self._until: dict[str, int] = {}
        for each in earlier:
            self._times[each.task_id] += 1
            self._until[each.task_id] = each.until

    def put(self, task_id: str, position: int) -> int:
        """Set a task aside; return the position from which it is tried again."""
        self._until[task_id] = position + self._tasks * 2 ** self._times[task_id]
        self._times[task_id] += 1
        return self._until[task_id]

    def at(self, position: int) -> frozenset[str]:
        """Return the ids of the tasks that are set aside at `position`."""
        return frozenset(task_id for task_id, until in self._until.items() if position < until)
