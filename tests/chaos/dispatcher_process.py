"""Collects one step and commits it; meant to be killed: `python dispatcher_process.py ROOT [HANG_AFTER]`.

After HANG_AFTER rollouts, agents hang with a background process in their sandboxes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hone.agents import AgentRun
from hone.policy.reply import Chat
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.store import Store
from hone.sandbox import Sandbox
from hone.types import Task
from tests.rollout.collecting import Collector
from tests.rollout.real import gold, open_context, script, tasks


class Worker:
    def __init__(self, hang_after: int) -> None:
        self._left = hang_after
        self._script = script(lambda task, rollout_id: [gold(task)] if rollout_id.endswith("-0") else [])

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        self._left -= 1
        if self._left < 0:
            await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 & sleep 1000", timeout_s=1000)
        await self._script.run(task, sandbox, chat, run)


async def main(root: Path, hang_after: int) -> None:
    async with open_context(root, Worker(hang_after), concurrent_episodes=3) as context:
        with Ledger.open(root / "run") as ledger:
            collector = Collector(context, ledger, Store(root / "run" / "rollouts"))
            groups = await collector.collect(0, tasks(3))
            ledger.commit_step(0, {t.rollout_id: TRAINED for g in groups for t in g.trajectories})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize))
