from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.agents import AgentRun
from hone.policy.reply import Chat
from hone.rollout.demonstrations import Demonstration, load, record
from hone.rollout.errors import StoreError
from hone.sandbox import Sandbox
from hone.types import Task
from tests.rollout.memory import World
from tests.rollout.real import tasks
from tests.virtual_time import run


class Demonstrator(World):
    """Its agent says its rollout's id after a second and submits."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        await asyncio.sleep(1)
        self.solving.add(run.rollout_id)
        run.messages.append({"role": "assistant", "content": run.rollout_id})


def test_recorded_demonstrations_are_reused(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    reported: list[int] = []

    async def collect(world: World, count: int) -> list[Demonstration]:
        context = world.context(tmp_path)
        await asyncio.sleep(2 * context.settings.time_limit_s)  # each has the whole limit, whenever it starts
        return await record(tasks(2), context, path, count=count, progress=reported.append)

    first, second = Demonstrator([]), Demonstrator([])
    begun = run(collect(first, 1))
    assert reported == [0, 1]
    done = run(collect(second, 3))
    assert reported == [0, 1, 1, 2, 3]
    one, two = (task.id for task in tasks(2))
    assert [d.rollout_id for d in done] == [f"{one}-0", f"{two}-0", f"{one}-1"]
    assert [d.messages[0]["content"] for d in done] == [d.rollout_id for d in done]
    assert done[0] == begun[0]
    assert second.solving == {f"{two}-0", f"{one}-1"}
    assert sorted(load(path), key=done.index) == done


def test_error_names_the_line_of_a_damaged_demonstration(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    path.write_text('{"task_id": "t", "rollout_id": "t-0", "messages": []}\n{}\n')
    with pytest.raises(StoreError, match="line 2, is not a demonstration"):
        load(path)
