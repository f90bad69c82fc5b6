"""Measure a fixed policy, or a scripted agent, with everything in one process."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hone.agents import load_scaffold
from hone.agents.settings import BashAgentSettings, DemonstratorSettings, ScriptedAgentSettings
from hone.config import RunSettings, fingerprint
from hone.evaluate import runner, sweep
from hone.evaluate.choice import choose
from hone.evaluate.errors import EvaluateError
from hone.evaluate.words import duration, number
from hone.launch.grade import localise_tasks
from hone.launch.policy import NewChat, open_chats
from hone.launch.reporter import Reporter, Stage
from hone.launch.rundir import weights_digest
from hone.launch.runtime import Runtime, open_context, open_runtime
from hone.policy.settings import OpenAIEngineSettings
from hone.tasks.formats import content_hash
from hone.tasks.sources import load_splits
from hone.types import Task
from hone.utils.concurrency import run_in_thread

Chats = Callable[[RunSettings], NewChat | None]  # of the sampling that the settings name
_SHOWN = 5  # tasks named in an error


def evaluate(
    settings: RunSettings, reporter: Reporter, *, out: Path | None = None, resume: bool = True
) -> dict[str, Any]:
    """Run `settings.agent` over the tasks of `settings.evaluate`; returns the summary, with `out` beside.

    Without `out`, each combination of weights, tasks and settings has a directory of its own below
    `run_dir/eval`, so that running the same command again goes on, and another checkpoint begins anew. With
    several temperatures, what is returned is the sweep's table.

    Raises EvaluateError when `out` is taken, by another evaluation or, without `resume`, by this one.
    """
    tasks = _tasks(settings, reporter)
    mark = _mark(settings, tasks)
    if out is None:
        out = settings.run_dir / "eval" / f"{settings.evaluate.split}-{mark[:8]}"
    runner.claim(out, mark, resume=resume)

    async def alone() -> dict[str, Any]:
        async with open_runtime(settings) as runtime, _open_chats(settings, reporter) as new_chats:
            if settings.evaluate.temperatures:
                return await _sweep(settings, runtime, reporter, tasks, out, new_chats)
            return await _run(settings, runtime, reporter, tasks, out, "evaluating", new_chats)

    return {**asyncio.run(alone()), "out": str(out)}


async def run_evaluation(
    settings: RunSettings,
    runtime: Runtime,
    reporter: Reporter,
    *,
    tasks: Sequence[Task],
    out: Path,
    title: str,
) -> dict[str, Any]:
    """Evaluate on `tasks` into `out`; goes on where an earlier call stopped."""
    async with _open_chats(settings, reporter) as new_chats:
        return await _run(settings, runtime, reporter, tasks, out, title, new_chats)


def _tasks(settings: RunSettings, reporter: Reporter) -> list[Task]:
    tasks = choose(getattr(load_splits(settings.tasks), settings.evaluate.split), settings.evaluate)
    found, refused = localise_tasks(tasks, settings.evaluate.repo_root, settings, reporter)
    if refused:
        named = "; ".join(list(refused.values())[:_SHOWN])
        raise EvaluateError(f"{len(refused)} of {len(tasks)} tasks have no repository to run on: {named}")
    return found


@asynccontextmanager
async def _open_chats(settings: RunSettings, reporter: Reporter) -> AsyncGenerator[Chats]:
    """Conversations with the policy, if the agent asks one; its engine can serve."""
    if not settings.agent.uses_policy:
        yield lambda _: None
        return
    async with open_chats(settings, reporter.note) as new_chats:
        yield new_chats


async def _sweep(
    settings: RunSettings,
    runtime: Runtime,
    reporter: Reporter,
    tasks: Sequence[Task],
    out: Path,
    new_chats: Chats,
) -> dict[str, Any]:
    """The same tasks at each temperature, one after the other on the same engine."""
    summaries: dict[float, dict[str, Any]] = {}
    for temperature in settings.evaluate.temperatures:
        below = at_temperature(settings, temperature)
        title = f"evaluating at temperature {temperature:g}"
        place = out / sweep.directory(temperature)
        summaries[temperature] = await _run(below, runtime, reporter, tasks, place, title, new_chats)
    return await run_in_thread(sweep.conclude, out, summaries)


def at_temperature(settings: RunSettings, temperature: float) -> RunSettings:
    """The evaluation at one temperature of a sweep."""
    sampling = settings.sampling.model_copy(update={"temperature": temperature})
    alone = settings.evaluate.model_copy(update={"temperatures": ()})
    return settings.model_copy(update={"sampling": sampling, "evaluate": alone})


async def _run(
    settings: RunSettings,
    runtime: Runtime,
    reporter: Reporter,
    tasks: Sequence[Task],
    out: Path,
    title: str,
    new_chats: Chats,
) -> dict[str, Any]:
    new_chat = new_chats(settings)
    with reporter.stage(title, len(tasks) * settings.evaluate.samples) as stage:
        display = EvaluationDisplay(stage, priced=settings.evaluate.cost(1, 1) > 0)
        async with open_context(runtime, settings, settings.agent, new_chat) as context:
            return await runner.evaluate(
                tasks, context, settings.evaluate, out, _subject(settings, tasks), progress=display.on_sample
            )


class EvaluationDisplay:
    """Says on the terminal how far the evaluation is, and how long it may still take."""

    def __init__(self, stage: Stage, *, priced: bool) -> None:
        self._stage = stage
        self._priced = priced
        self._told = 0
        self._begun: tuple[float, int] | None = None  # when, and how many had ended before

    def on_sample(self, progress: runner.EvalProgress) -> None:
        self._stage.advance(progress.ended - self._told)
        self._told = progress.ended
        now = time.monotonic()
        started, before = self._begun = self._begun or (now, progress.ended)
        said = [f"resolved {progress.resolved}"]
        if before < progress.ended < progress.planned:
            left = (now - started) / (progress.ended - before) * (progress.planned - progress.ended)
            said.append(f"about {duration(round(left))} left")
        if self._priced:
            said.append(f"cost {number(progress.cost)}")
        self._stage.set_status(", ".join(said))


def _subject(settings: RunSettings, tasks: Sequence[Task]) -> runner.Subject:
    agent, engine = settings.agent, settings.engine
    asks = agent.uses_policy
    model = agent.kind
    if asks:
        named = engine.model_name if isinstance(engine, OpenAIEngineSettings) else ""
        model = named if settings.model is None else str(settings.model.path)
    steps = agent.turn_limit
    prompted = isinstance(agent, (BashAgentSettings, ScriptedAgentSettings, DemonstratorSettings))
    if steps is None and prompted and agent.kind != "mini-swe-agent":
        steps = load_scaffold(agent.prompts).step_limit
    return runner.Subject(
        model=model,
        data=str(settings.tasks.evaluation or settings.tasks.source),
        seed=settings.seed,
        fingerprint=_mark(settings, tasks),
        trainable=asks and engine.kind != "openai",
        args=settings.model_dump(mode="json", exclude={"run_dir"}),
        meta={
            "model": model,
            "api_base": engine.addresses[0] if asks and engine.addresses else None,
            "step_limit": steps,
            "max_tokens": settings.sampling.max_tokens,
        },
    )


def _mark(settings: RunSettings, tasks: Sequence[Task]) -> str:
    """Tells evaluations apart: the settings, the weights themselves and what the tasks hold."""
    weights = " ".join(settings.engine.addresses)  # which of other people's servers hold other weights
    if settings.model is not None and settings.agent.uses_policy and settings.model.path.is_dir():
        weights += weights_digest(settings.model.path)
    held = [f"{task.id} {content_hash(task)}" for task in tasks]
    return hashlib.sha256("\n".join([fingerprint(settings), weights, *held]).encode()).hexdigest()
