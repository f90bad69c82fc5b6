"""The quickstart: train a tiny model to fix bugs, on one machine.

    tasks -> demonstrations -> tiny model -> supervised training -> evaluate -> GRPO -> evaluate -> report

Every stage continues where it stopped. Demonstrations are recorded once, and GRPO trains on tasks without
demonstrations, so the gain between the two evaluations comes from the reward alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hone.config import ConfigError, RunSettings
from hone.launch.evaluate import as_measured, run_evaluation
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim, claimed, replace_symlink, with_model
from hone.launch.runtime import Runtime, open_runtime
from hone.launch.sft import make_start_model, split_demonstrated
from hone.launch.train import run_training
from hone.rollout.demonstrations import Demonstration
from hone.tasks.formats import save
from hone.tasks.sources import load_splits
from hone.tasks.splits import Splits
from hone.types import Task
from hone.utils.files import write_file

GIB = 1 << 30


def quickstart(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
    """Run the stages that are not done; return the content of `run_dir/report.json`.

    Both evaluations sample at `evaluate.temperatures`, or else at `sampling.temperature`. Raises ConfigError
    for several temperatures.
    """
    return asyncio.run(_quickstart(settings, reporter))


async def _quickstart(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
    run_dir = settings.run_dir
    measured = _as_measured(settings)
    splits = load_splits(settings.tasks)
    demonstrated, practised = split_demonstrated(settings, splits.train)
    with _clock(run_dir) as seconds:
        async with open_runtime(settings) as runtime:
            ready = claimed(settings, "quickstart")
            claim(ready)
            save([task for _, tasks in splits.named() for task in tasks], run_dir / "tasks.jsonl")
            start, demonstrations = await make_start_model(settings, runtime, reporter, demonstrated)
            teacher = await _measure_demonstrator(settings, runtime, reporter, demonstrated)
            before = await _measure(measured, runtime, reporter, splits, start, "before")
            trained = await run_training(
                ready, runtime, reporter, tasks=practised, validation=splits.validation
            )
            final = replace_symlink(run_dir / "final", trained.checkpoint)
            after = await _measure(measured, runtime, reporter, splits, final, "after")
        report = {
            "before": before["test"],
            "after": after["test"],
            "temperature": measured.sampling.temperature,
            "unseen_families": {"before": before["test_unseen"], "after": after["test_unseen"]},
            "demonstrations": {
                "recorded": len(demonstrations),
                "right": right_share(demonstrations, demonstrated),
                "graded": teacher,
            },
            "seconds": round(seconds(), 1),
            "peak_memory_gib": round(peak_memory_gib(), 2),
            "checkpoint": str(final),
            "steps_without_training": trained.steps_without_training,
            "tasks_with_equal_rewards": trained.tasks_with_equal_rewards,
            "started_from": str(start),
            "seed": settings.seed,
        }
    write_file(run_dir / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _as_measured(settings: RunSettings) -> RunSettings:
    """Return the settings of both evaluations."""
    temperatures = settings.evaluate.temperatures
    if len(temperatures) > 1:
        raise ConfigError(
            f"evaluate.temperatures lists {len(temperatures)}: the quickstart measures at one temperature"
        )
    return as_measured(settings)


async def _measure(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, splits: Splits, model: Path, when: str
) -> dict[str, dict[str, Any]]:
    """Return the resolve rates with their intervals, by split."""
    rates: dict[str, dict[str, Any]] = {}
    for name, tasks in (("test", "held-out tasks"), ("test_unseen", "families never seen")):
        summary = await run_evaluation(
            with_model(settings, model),
            runtime,
            reporter,
            tasks=getattr(splits, name),
            out=settings.run_dir / "eval" / f"{when}-{name}",
            title=f"measuring {when} RL: {tasks}",
        )
        rates[name] = _rate(summary)
    return rates


async def _measure_demonstrator(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, demonstrated: Sequence[Task]
) -> dict[str, Any]:
    """Return the resolve rate of the demonstrator on a random part of its tasks."""
    wanted = settings.demonstrations
    # A random sample, because the kinds of bugs alternate in order.
    chosen = random.Random(f"{settings.seed} graded").sample(
        demonstrated, min(wanted.graded, len(demonstrated))
    )
    summary = await run_evaluation(
        settings.model_copy(update={"agent": wanted.agent}),
        runtime,
        reporter,
        tasks=chosen,
        out=settings.run_dir / "eval" / "demonstrator",
        title="grading demonstrations",
    )
    return _rate(summary)


def right_share(demonstrations: Sequence[Demonstration], tasks: Sequence[Task]) -> float | None:
    """Return the fraction of demonstrations that ran every command which the task lists as right.

    None if a task lists no fixes.
    """
    if not all("fixes" in task.metadata for task in tasks):
        return None
    right = {task.id: [fix["command"] for fix in task.metadata["fixes"] if fix["right"]] for task in tasks}
    texts = [
        (d.task_id, "\n".join(str(message["content"]) for message in d.messages)) for d in demonstrations
    ]
    return sum(all(command in text for command in right[task]) for task, text in texts) / len(texts)


def _rate(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in ("resolve_rate", "low", "high", "n")}


@contextmanager
def _clock(run_dir: Path) -> Iterator[Any]:
    """Yield a function that returns the seconds spent on the run over all starts (`run_dir/seconds`)."""
    path = run_dir / "seconds"
    before = float(path.read_text()) if path.is_file() else 0.0
    started = time.monotonic()

    def seconds() -> float:
        return before + time.monotonic() - started

    try:
        yield seconds
    finally:
        if run_dir.is_dir():
            write_file(path, f"{seconds():.1f}\n")


def peak_memory_gib() -> float:
    """Return the peak resident memory of this process plus that of its largest child that has exited."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_maxrss for usage in usages) * 1024 / GIB
