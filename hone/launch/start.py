"""The start model of a run: a tiny model with random weights, trained on demonstrations."""

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
    """Return the tasks for demonstrations and the tasks for RL, which are disjoint.

    Raises ConfigError if no task is left for RL.
    """
    shown = settings.demonstrations.rollouts
    if len(tasks) <= shown:
        raise ConfigError(
            f"no task is left for RL after the demonstrations: set tasks.train above the {shown} of "
            "demonstrations.rollouts"
        )
    return tasks[:shown], tasks[shown:]


def with_start_model(settings: RunSettings) -> RunSettings:
    """Return the settings with the model of `make_start_model`."""
    return with_model(settings, settings.run_dir / "start")


async def make_start_model(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, demonstrated: Sequence[Task]
) -> tuple[Path, list[Demonstration]]:
    """Record demonstrations and train a random tiny model on them; continue an earlier call.

    Returns `run_dir/start`, a link to the model, and the demonstrations.
    """
    demonstrations = await record(settings, runtime, reporter, tasks=demonstrated)
    taught = await asyncio.to_thread(_train_on, settings, demonstrations, reporter)
    return replace_symlink(settings.run_dir / "start", taught), demonstrations


def _train_on(settings: RunSettings, demonstrations: Sequence[Demonstration], reporter: Reporter) -> Path:
    """Return the checkpoint trained on the demonstrations."""
    base = settings.run_dir / "base"
    if not base.is_dir():
        partial = base.with_name(".base.partial")
        make_tiny(_texts(demonstrations), partial, settings.tiny_model)
        partial.rename(base)
    below = with_model(settings.model_copy(update={"run_dir": settings.run_dir / "sft"}), base)
    claim(below)
    return run_sft(below, demonstrations, reporter).checkpoint


def _texts(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """Yield all text that the model reads and writes, for its tokenizer."""
    for demonstration in demonstrations:
        yield from (json.dumps(tool) for tool in demonstration.tools)
        for message in demonstration.messages:
            yield str(message["content"] or "")
            yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())


def with_model(settings: RunSettings, path: Path) -> RunSettings:
    model = settings.model or ModelSettings(path=path)
    return settings.model_copy(update={"model": model.model_copy(update={"path": path})})
