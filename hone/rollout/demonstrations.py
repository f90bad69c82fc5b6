"""Recorded conversations of an agent that knows what it does: what supervised training learns from.

A demonstration is not a rollout: it is not graded, has no outcome and stands in no ledger. They are kept in
one append-only file, a JSON object a line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.environment import prepare_workspace
from hone.policy.reply import ToolSpec
from hone.rollout.dispatcher import first_error
from hone.rollout.episode import Episode, RolloutContext, run_demonstration
from hone.rollout.errors import RolloutError, StoreError
from hone.types import Message, Task
from hone.utils.concurrency import run_in_thread
from hone.utils.jsonl import append_json, drop_partial_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    task_id: str
    rollout_id: str  # `<task>-<index>`, as in an evaluation: the same choices, graded there
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()  # that were offered beside them


async def record(
    tasks: Sequence[Task],
    context: RolloutContext,
    path: Path,
    *,
    count: int,
    progress: Callable[[int], None] = lambda recorded: None,
) -> list[Demonstration]:
    """Record `count` demonstrations, of the tasks in turn, and return them in that order.

    What an earlier call wrote to `path` is kept and not recorded again. `progress` hears how many there are.
    Raises RolloutError when a demonstration fails `context.settings.attempts` times, StoreError, TaskError.
    """
    wanted = [(task, f"{task.id}-{index // len(tasks)}") for index, task in _in_turn(tasks, count)]
    known = {d.rollout_id: d for d in await run_in_thread(_recover, path)}
    places = asyncio.Semaphore(context.settings.concurrent_episodes)
    progress(sum(rollout_id in known for _, rollout_id in wanted))

    async def one(task: Task, rollout_id: str) -> None:
        async with places:
            known[rollout_id] = await _demonstrate(task, rollout_id, context)
        _append(path, known[rollout_id])
        progress(len(known))

    try:
        async with asyncio.TaskGroup() as jobs:
            for task, rollout_id in wanted:
                if rollout_id not in known:
                    jobs.create_task(one(task, rollout_id))
    except BaseExceptionGroup as failed:
        raise first_error(failed) from failed
    return [known[rollout_id] for _, rollout_id in wanted]


def load(path: Path) -> list[Demonstration]:
    """Raises StoreError, which names the line, when one is not a demonstration."""
    try:
        return [_parse(path, number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1)]
    except OSError as error:
        raise StoreError(f"cannot read the demonstrations {path}: {os.strerror(error.errno or 0)}") from error


def _in_turn(tasks: Sequence[Task], count: int) -> list[tuple[int, Task]]:
    if not tasks:
        raise RolloutError("there is no task to demonstrate: the set is empty")
    return [(index, tasks[index % len(tasks)]) for index in range(count)]


async def _demonstrate(task: Task, rollout_id: str, context: RolloutContext) -> Demonstration:
    workspace = await prepare_workspace(task, context.provider, context.workspaces)
    for attempt in range(context.settings.attempts):
        episode = Episode(task=task, rollout_id=rollout_id, group_id=task.id, workspace=workspace, seed=0)
        try:
            await run_demonstration(episode, context)
        except RolloutError:
            if attempt + 1 == context.settings.attempts:
                raise
            await asyncio.sleep(context.settings.retry_delay_s * 2**attempt)
        else:
            return Demonstration(
                task_id=task.id,
                rollout_id=rollout_id,
                messages=tuple(episode.run.messages),
                tools=tuple(episode.run.tools),
            )
    raise AssertionError("the last attempt returns or raises")


def _append(path: Path, demonstration: Demonstration) -> None:
    try:
        append_json(path, dataclasses.asdict(demonstration))
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {os.strerror(error.errno or 0)}; mend that and run the same command again"
        ) from error


def _recover(path: Path) -> list[Demonstration]:
    """Return the demonstrations of an earlier process; a line that its death cut short is removed."""
    drop_partial_line(path)
    return load(path) if path.is_file() else []


def _parse(path: Path, number: int, line: bytes) -> Demonstration:
    try:
        fields: dict[str, Any] = json.loads(line)
        return Demonstration(
            task_id=fields["task_id"],
            rollout_id=fields["rollout_id"],
            messages=tuple(fields["messages"]),
            tools=tuple(fields["tools"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}, line {number}, is not a demonstration: {error!r}") from error
