"""The groups of verl's agent loop: it runs the rollouts of a group in one process and takes them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from hone.rollout.rewards import is_infrastructure_fault
from hone.types import Trajectory


@dataclass(slots=True)
class _Group:
    running: int = 0
    rewarded: int = 0  # rollouts without an infrastructure fault
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Groups:
    """The groups under way in this process.

    Invariant: the rollouts of a group join it before the first of them ends, because verl starts them
    together and `run` joins before it waits.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    async def run(self, group_id: str, rollout: Awaitable[Trajectory]) -> tuple[Trajectory, int]:
        """Return the rollout, once its group has ended, and how many of the group have a reward.

        A rollout that raises has none. Raises what `rollout` raises, without waiting for the others.
        """
        group = self._groups.setdefault(group_id, _Group())
        group.running += 1
        try:
            trajectory = await rollout
            group.rewarded += not is_infrastructure_fault(trajectory.outcome)
        finally:
            group.running -= 1
            if not group.running:
                del self._groups[group_id]
                group.ended.set()
        await group.ended.wait()
        return trajectory, group.rewarded
