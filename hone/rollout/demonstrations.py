"""Recorded conversations of a scripted agent that solves its tasks: the data of supervised training.

A demonstration is not a rollout: it is not graded, has no outcome and no row in the ledger. Demonstrations
are stored in one append-only file of JSON lines.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from hone.environment import prepare_workspace
from hone.policy.reply import ToolSpec
from hone.rollout.episode import Episode, RolloutContext, run_demonstration
from hone.rollout.errors import RolloutError, StoreError
from hone.types import Message, Task
from hone.utils.concurrency import run_in_thread, task_group
from hone.utils.errors import writing
from hone.utils.jsonl import append_json, drop_partial_line
from hone.utils.retry import retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    task_id: str
    rollout_id: str  # `<task>-<index>`: a scripted agent makes the same choices in an evaluation, graded
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()  # offered with the messages
    thinking: bool | None = None  # whether the prompts let the model reason; None: not known


_DEMONSTRATION = TypeAdapter(Demonstration)


async def record(
    tasks: Sequence[Task],
    context: RolloutContext,
    path: Path,
    *,
    count: int,
    progress: Callable[[int], None] = lambda recorded: None,
) -> list[Demonstration]:
    """Record `count` demonstrations, cycling through the tasks, and return them in that order.

    Demonstrations that an earlier call wrote to `path` are reused.

    Args:
        progress: is told the number of recorded demonstrations after each one.
    Raises:
        RolloutError: a demonstration failed `context.settings.attempts` times.
        StoreError: `path` cannot be read or written.
        TaskError: a task's repository cannot be prepared.
    """
    if not tasks:
        raise RolloutError("the task set is empty: choose another set, or other tasks, to demonstrate")
    repeated = itertools.islice(itertools.cycle(tasks), count)
    wanted = [(task, f"{task.id}-{index // len(tasks)}") for index, task in enumerate(repeated)]
    known = {d.rollout_id: d for d in await run_in_thread(_recover, path)}
    running = asyncio.Semaphore(context.settings.concurrent_episodes)
    progress(sum(rollout_id in known for _, rollout_id in wanted))

    async def record_one(task: Task, rollout_id: str) -> None:
        async with running:
            known[rollout_id] = await _demonstrate(task, rollout_id, context)
        with writing(path, StoreError):
            append_json(path, dataclasses.asdict(known[rollout_id]))
        progress(len(known))

    async with task_group() as jobs:
        for task, rollout_id in wanted:
            if rollout_id not in known:
                jobs.create_task(record_one(task, rollout_id))
    return [known[rollout_id] for _, rollout_id in wanted]


def load(path: Path) -> list[Demonstration]:
    """Return the demonstrations of a file. Raises StoreError, which names the line that is damaged."""
    try:
        return [_parse(path, number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1)]
    except OSError as error:
        raise StoreError(f"cannot read the demonstrations {path}: {os.strerror(error.errno or 0)}") from error


async def _demonstrate(task: Task, rollout_id: str, context: RolloutContext) -> Demonstration:
    workspace = await prepare_workspace(task, context.provider, context.workspaces)

    async def attempt() -> Demonstration:
        episode = Episode(task=task, rollout_id=rollout_id, group_id=task.id, workspace=workspace, seed=0)
        await run_demonstration(episode, context)
        return Demonstration(
            task_id=task.id,
            rollout_id=rollout_id,
            messages=tuple(episode.run.messages),
            tools=tuple(episode.run.tools),
        )

    return await retry(
        attempt,
        attempts=context.settings.attempts,
        delays=context.settings.retry_delays(),
        transient=lambda error: isinstance(error, RolloutError),
    )


def _recover(path: Path) -> list[Demonstration]:
    """Return the demonstrations that an earlier process recorded; remove a partial last line."""
    drop_partial_line(path)
    return load(path) if path.is_file() else []


def _parse(path: Path, number: int, line: bytes) -> Demonstration:
    try:
        return _DEMONSTRATION.validate_python(json.loads(line))
    except ValueError as error:
        raise StoreError(f"{path}, line {number}, is not a demonstration: {error!r}") from error
