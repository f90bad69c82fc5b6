"""The small model that a run makes for itself: random at first, then taught by demonstrations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hone.config import ConfigError, RunSettings
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim, replace_symlink
from hone.launch.runtime import Runtime
from hone.launch.sft import record, run_sft
from hone.policy.settings import ModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.demonstrations import Demonstration
from hone.types import Task


def split_demonstrated(settings: RunSettings, tasks: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Task]]:
    """The tasks that are demonstrated, and those that the policy practises on, which nobody demonstrated.

    Raises ConfigError when none are left to practise on.
    """
    shown = settings.demonstrations.rollouts
    if len(tasks) <= shown:
        raise ConfigError(
            f"the policy practises on tasks that nobody demonstrated: set tasks.train above the {shown} of "
            "demonstrations.rollouts"
        )
    return tasks[:shown], tasks[shown:]


def with_start_model(settings: RunSettings) -> RunSettings:
    """The settings with the model that `make_start_model` leaves."""
    return with_model(settings, settings.run_dir / "start")


async def make_start_model(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, demonstrated: Sequence[Task]
) -> tuple[Path, list[Demonstration]]:
    """Record demonstrations and teach them to a random tiny model; goes on where it stopped.

    Returns `run_dir/start`, which then points to the model, and the demonstrations.
    """
    demonstrations = await record(settings, runtime, reporter, tasks=demonstrated)
    taught = await asyncio.to_thread(_teach, settings, demonstrations, reporter)
    return replace_symlink(settings.run_dir / "start", taught), demonstrations


def _teach(settings: RunSettings, demonstrations: Sequence[Demonstration], reporter: Reporter) -> Path:
    """The checkpoint that imitates the demonstrations."""
    base = settings.run_dir / "base"
    if not base.is_dir():
        partial = base.with_name(".base.partial")
        make_tiny(_texts(demonstrations), partial, settings.tiny_model)
        partial.rename(base)
    below = with_model(settings.model_copy(update={"run_dir": settings.run_dir / "sft"}), base)
    claim(below)
    return run_sft(below, demonstrations, reporter).checkpoint


def _texts(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """Everything that the model will read and write."""
    for demonstration in demonstrations:
        yield from (json.dumps(tool) for tool in demonstration.tools)
        for message in demonstration.messages:
            yield str(message["content"] or "")
            yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())


def with_model(settings: RunSettings, path: Path) -> RunSettings:
    model = settings.model or ModelSettings(path=path)
    return settings.model_copy(update={"model": model.model_copy(update={"path": path})})
