"""Measure a fixed policy, or a scripted agent, with everything in one process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.config import RunSettings, fingerprint
from hone.evaluate import runner
from hone.launch.policy import chats, load_policy, open_engine
from hone.launch.reporter import Reporter, Stage
from hone.launch.rundir import weights_mark
from hone.launch.testbed import Testbed, open_parts, open_testbed
from hone.tasks.sources import load_splits
from hone.types import Task


def evaluate(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
    """Run `settings.agent` over `settings.evaluate.split`; returns the summary, with where it lies as `out`.

    Each combination of weights and settings has a directory of its own below `run_dir/eval`, so that running
    the same command again goes on, and another checkpoint begins anew.
    """

    async def alone() -> dict[str, Any]:
        async with open_testbed(settings) as testbed:
            split = settings.evaluate.split
            tasks = getattr(load_splits(settings.tasks), split)
            out = settings.run_dir / "eval" / f"{split}-{_mark(settings)[:8]}"
            return await run_evaluation(settings, testbed, reporter, tasks=tasks, out=out, title="evaluating")

    return asyncio.run(alone())


async def run_evaluation(
    settings: RunSettings,
    testbed: Testbed,
    reporter: Reporter,
    *,
    tasks: Sequence[Task],
    out: Path,
    title: str,
) -> dict[str, Any]:
    """Evaluate on `tasks` into `out`; goes on where an earlier call stopped."""
    with reporter.stage(title, len(tasks) * settings.evaluate.samples) as stage:
        if settings.agent.kind != "bash":
            return await _run(settings, testbed, tasks, out, stage, None)
        policy = await asyncio.to_thread(load_policy, settings)
        async with open_engine(policy, settings) as engine:
            return await _run(settings, testbed, tasks, out, stage, chats(policy, engine, settings))


async def _run(
    settings: RunSettings,
    testbed: Testbed,
    tasks: Sequence[Task],
    out: Path,
    stage: Stage,
    new_chat: Any,
) -> dict[str, Any]:
    ended = 0

    def show(progress: runner.Progress) -> None:
        nonlocal ended
        stage.advance(progress.ended - ended)
        ended = progress.ended
        stage.say(f"resolved {progress.resolved}")

    await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
    model = (
        str(settings.model.path)
        if settings.model is not None and new_chat is not None
        else settings.agent.kind
    )
    async with open_parts(testbed, settings, settings.agent, new_chat) as parts:
        summary = await runner.evaluate(
            tasks,
            parts,
            settings.evaluate,
            out,
            model=model,
            data=settings.tasks.source,
            seed=settings.seed,
            fingerprint=_mark(settings),
            args=settings.model_dump(mode="json", exclude={"run_dir"}),
            progress=show,
        )
    return {**summary, "out": str(out)}


def _mark(settings: RunSettings) -> str:
    """Tells evaluations apart: the settings, and the weights themselves."""
    weights = ""
    if settings.model is not None and settings.agent.kind == "bash" and settings.model.path.is_dir():
        weights = weights_mark(settings.model.path)
    return hashlib.sha256(f"{fingerprint(settings)} {weights}".encode()).hexdigest()
