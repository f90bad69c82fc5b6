"""Evaluates a fixed policy, or a scripted agent, in one process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hone.agents import load_scaffold
from hone.agents.settings import BashAgentSettings, DemonstratorSettings, ScriptedAgentSettings
from hone.config import RunSettings, identity_of
from hone.evaluate import runner
from hone.evaluate.errors import EvaluateError
from hone.evaluate.words import duration, number
from hone.grading.assess import check_gradeable
from hone.launch.placement import place
from hone.launch.policy import NewChat, open_chats
from hone.launch.reporter import Reporter, Stage
from hone.launch.rundir import weights_digest
from hone.launch.runtime import Runtime, open_context, open_runtime
from hone.launch.tasks import localise_tasks
from hone.policy.hub import PIN, locate_model, pinned_commit
from hone.policy.settings import ModelSettings, OpenAIEngineSettings
from hone.tasks.formats import content_hash
from hone.tasks.sources import load_splits
from hone.types import Task
from hone.utils.concurrency import run_in_thread
from hone.view.web.report import write_report

Chats = Callable[[RunSettings], NewChat | None]  # settings, for their sampling -> opens chats
_SHOWN = 5  # tasks listed in an error


def evaluate(
    settings: RunSettings, reporter: Reporter, *, out: Path | None = None, resume: bool = True
) -> dict[str, Any]:
    """Evaluate as `open_and_evaluate`; blocks."""
    return asyncio.run(open_and_evaluate(settings, reporter, out=out, resume=resume))


async def open_and_evaluate(
    settings: RunSettings,
    reporter: Reporter,
    *,
    tasks: Sequence[Task] | None = None,
    out: Path | None = None,
    resume: bool = True,
) -> dict[str, Any]:
    """Run `settings.agent` on `tasks`, by default those of `settings`; return the summary plus `out`.

    Without `out`, each combination of weights, tasks and settings has its own directory below `run_dir/eval`:
    the same command continues there, and another checkpoint starts a new evaluation. Several temperatures
    return the summary of the sweep.

    Raises EvaluateError if `out` holds another evaluation, or this one without `resume`.
    """
    settings = as_measured(settings)
    data = None if tasks is None else ", ".join(sorted({task.source for task in tasks}))
    tasks = await asyncio.to_thread(_tasks, settings, reporter, tasks)
    identity = _identity(settings, tasks)
    if out is None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        out = settings.run_dir / "eval" / f"{settings.evaluate.split}-{digest[:8]}"
    runner.require_own(out, identity, resume=resume)
    async with open_runtime(settings) as runtime:
        summary = await run_evaluation(
            settings,
            runtime,
            reporter,
            tasks=tasks,
            out=out,
            title="evaluating",
            temperatures=settings.evaluate.temperatures,
            data=data,
        )
    return {**summary, "out": str(out)}


async def run_evaluation(
    settings: RunSettings,
    runtime: Runtime,
    reporter: Reporter,
    *,
    tasks: Sequence[Task],
    out: Path,
    title: str,
    temperatures: Sequence[float] = (),
    data: str | None = None,
) -> dict[str, Any]:
    """Evaluate on `tasks` into `out`; continue an earlier call.

    Several `temperatures` are evaluated in turn on the same engine, each in its own directory below `out`.
    `data` says where the tasks come from; default: as `settings` do.
    """
    async with _open_chats(settings, reporter) as new_chats:

        async def evaluate_once(settings: RunSettings, out: Path, title: str) -> dict[str, Any]:
            info = _eval_info(settings, tasks, data)
            with reporter.stage(title, len(tasks) * settings.evaluate.samples) as stage:
                progress = EvaluationDisplay(stage, priced=settings.evaluate.cost(1, 1) > 0).on_sample
                chat = new_chats(settings)
                async with open_context(runtime, settings, settings.agent, chat, evaluation=True) as context:
                    summary = await runner.evaluate(
                        tasks, context, settings.evaluate, out, info, progress=progress
                    )
            await run_in_thread(write_report, out)
            return summary

        if not temperatures:
            return await evaluate_once(settings, out, title)
        await run_in_thread(runner.claim, out, _identity(settings, tasks))
        summaries = {
            temperature: await evaluate_once(
                at_temperature(settings, temperature),
                out / runner.sweep_directory(temperature),
                f"{title} at temperature {temperature:g}",
            )
            for temperature in temperatures
        }
        sweep = await run_in_thread(runner.conclude_sweep, out, summaries)
        await run_in_thread(write_report, out)
        return sweep


def _tasks(settings: RunSettings, reporter: Reporter, given: Sequence[Task] | None) -> list[Task]:
    """Return the chosen ones of the tasks that are `given`, else of the set of `settings`."""
    all_tasks: Sequence[Task] = (
        getattr(load_splits(settings.tasks), settings.evaluate.split) if given is None else given
    )
    tasks = runner.choose(all_tasks, settings.evaluate)
    found, refused = localise_tasks(tasks, settings.evaluate.repo_root, settings, reporter)
    if refused:
        named = "; ".join(list(refused.values())[:_SHOWN])
        raise EvaluateError(
            f"{len(refused)} of {len(tasks)} tasks have no repository below evaluate.repo_root: {named}"
        )
    check_gradeable(found)
    return found


@asynccontextmanager
async def _open_chats(settings: RunSettings, reporter: Reporter) -> AsyncGenerator[Chats]:
    """Open the policy's engine, if the agent uses a policy, and check it."""
    if not settings.agent.uses_policy:
        yield lambda _: None
        return
    placed = await asyncio.to_thread(place, settings, "eval")
    async with open_chats(placed, reporter.note) as new_chats:
        yield new_chats


def as_measured(settings: RunSettings) -> RunSettings:
    """Return the settings that sample at the temperature of `evaluate.temperatures`, if it is only one."""
    temperatures = settings.evaluate.temperatures
    return at_temperature(settings, temperatures[0]) if len(temperatures) == 1 else settings


def at_temperature(settings: RunSettings, temperature: float) -> RunSettings:
    """Return the settings of an evaluation at one temperature."""
    sampling = settings.sampling.model_copy(update={"temperature": temperature})
    alone = settings.evaluate.model_copy(update={"temperatures": ()})
    return settings.model_copy(update={"sampling": sampling, "evaluate": alone})


class EvaluationDisplay:
    """Shows the progress of an evaluation and the estimated time left."""

    def __init__(self, stage: Stage, *, priced: bool) -> None:
        self._stage = stage
        self._priced = priced
        self._begun: tuple[float, int] | None = None  # time of the first call, and samples ended before it

    def on_sample(self, progress: runner.EvalProgress) -> None:
        self._stage.set_done(progress.ended)
        now = time.monotonic()
        started, before = self._begun = self._begun or (now, progress.ended)
        texts = [f"resolved {progress.resolved}"]
        if before < progress.ended < progress.planned:
            left = (now - started) / (progress.ended - before) * (progress.planned - progress.ended)
            texts.append(f"about {duration(round(left))} left")
        if self._priced:
            texts.append(f"cost {number(progress.cost)}")
        self._stage.set_status(", ".join(texts))


def _eval_info(settings: RunSettings, tasks: Sequence[Task], data: str | None) -> runner.EvalInfo:
    agent, engine = settings.agent, settings.engine
    uses_policy = agent.uses_policy
    model = agent.kind
    if uses_policy:
        served_name = engine.model_name if isinstance(engine, OpenAIEngineSettings) else ""
        model = served_name if settings.model is None else str(settings.model.path)
    steps = agent.turn_limit
    prompted = isinstance(agent, (BashAgentSettings, ScriptedAgentSettings, DemonstratorSettings))
    if steps is None and prompted and agent.kind != "mini-swe-agent":
        steps = load_scaffold(agent.prompts).step_limit
    return runner.EvalInfo(
        model=model,
        data=data or str(_replacement(settings) or settings.tasks.source),
        seed=settings.seed,
        identity=_identity(settings, tasks),
        trainable=uses_policy and engine.kind != "openai",
        args=settings.model_dump(mode="json", exclude={"run_dir"}),
        meta={
            "model": model,
            "api_base": engine.addresses[0] if uses_policy and engine.addresses else None,
            "step_limit": steps,
            "max_tokens": settings.sampling.max_tokens,
        },
    )


def _replacement(settings: RunSettings) -> Path | None:
    """Return the file whose tasks replace those of `tasks.source` in the evaluated set."""
    tasks = settings.tasks
    return {"test": tasks.evaluation, "validation": tasks.validation_source}.get(settings.evaluate.split)


def _weights_id(model: ModelSettings, run_dir: Path) -> str:
    """Return the commit of a hub model, or the digest of a model folder. Raises PolicyError."""
    located = locate_model(model, commit=pinned_commit(model, run_dir / PIN))
    if located.commit is not None:
        return located.commit
    return weights_digest(located.folder) if located.folder.is_dir() else ""


def _identity(settings: RunSettings, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what identifies an evaluation, as JSON: settings, weights and tasks."""
    weights = " ".join(settings.engine.addresses)  # external servers may hold other weights
    if settings.model is not None and settings.agent.uses_policy and settings.engine.kind != "openai":
        weights += _weights_id(settings.model, settings.run_dir)
    contents = {task.id: content_hash(task) for task in tasks}
    return {**identity_of(settings), "weights": weights, "tasks": contents}
