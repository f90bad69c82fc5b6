"""Supervised training on demonstrations, which are recorded first where none are named."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hone.config import RunSettings
from hone.launch.evaluate import run_evaluation
from hone.launch.policy import load_policy
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim
from hone.launch.testbed import Testbed, open_testbed
from hone.policy.transcript import encode_conversation
from hone.rollout.lock import RunLock
from hone.rollout.store import Store
from hone.tasks.sources import load_splits
from hone.train.metrics import MetricsWriter
from hone.train.sft import demonstration_samples
from hone.train.sft import sft as fit
from hone.types import Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    run_dir: Path
    demonstrations: int
    checkpoint: Path  # transformers loads it
    loss: float | None  # of the last optimiser step; None when nothing was left to do


def sft(settings: RunSettings, reporter: Reporter) -> SftReport:
    """Train `settings.model` on the demonstrations, from where the run directory stands."""

    async def demonstrations() -> list[Trajectory]:
        async with open_testbed(settings) as testbed:
            return await record(settings, testbed, reporter, tasks=load_splits(settings.tasks).train)

    if settings.demonstrations.path is not None:
        stored = load_demonstrations(settings.demonstrations.path)
    else:
        stored = asyncio.run(demonstrations())
    return run_sft(settings, stored, reporter)


async def record(
    settings: RunSettings, testbed: Testbed, reporter: Reporter, *, tasks: Sequence[Task]
) -> list[Trajectory]:
    """Record `demonstrations.rollouts` rollouts of the demonstrator, each graded, and return them."""
    wanted = settings.demonstrations
    chosen = tasks[: wanted.rollouts]
    as_demonstrator = settings.model_copy(
        update={
            "agent": wanted.agent,
            "evaluate": settings.evaluate.model_copy(
                update={"samples": math.ceil(wanted.rollouts / max(1, len(chosen)))}
            ),
        }
    )
    out = settings.run_dir / "demonstrations"
    title = "recording demonstrations"
    await run_evaluation(as_demonstrator, testbed, reporter, tasks=chosen, out=out, title=title)
    return await asyncio.to_thread(load_demonstrations, out)


def load_demonstrations(run_dir: Path) -> list[Trajectory]:
    """The stored rollouts of a run or an evaluation, in the order of their names. Raises StoreError."""
    store = Store(run_dir / "rollouts")
    return [store.load(name) for name in store.names()]


def run_sft(settings: RunSettings, demonstrations: Sequence[Trajectory], reporter: Reporter) -> SftReport:
    """Blocks. Goes on from the run directory's last checkpoint."""
    claim(settings)
    policy = load_policy(settings)
    encode = partial(encode_conversation, policy.renderer, policy.tokenizer)
    last: Mapping[str, float] = {}
    with (
        RunLock(settings.run_dir),
        MetricsWriter(settings.run_dir, kind="sft") as metrics,
        reporter.stage("supervised training") as stage,
    ):

        def on_step(step: int, steps: int, measured: Mapping[str, float]) -> None:
            nonlocal last
            if not last:
                stage.grow(steps)
                stage.advance(step)
            last = measured
            stage.advance()
            stage.say(f"loss {measured['loss']:.3f}  {measured['tokens_per_s']:.0f} tokens/s")

        checkpoint = fit(
            policy.model,
            demonstration_samples(demonstrations, encode),
            settings.sft,
            run_dir=settings.run_dir,
            tokenizer=policy.tokenizer,
            metrics=metrics,
            on_step=on_step,
        )
    return SftReport(
        run_dir=settings.run_dir,
        demonstrations=len(demonstrations),
        checkpoint=checkpoint,
        loss=last.get("loss"),
    )
