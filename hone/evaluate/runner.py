"""Evaluate a fixed policy, or a scripted agent, on a task set with the same episodes as training.

An evaluation can be resumed: samples in `results.jsonl` are not run again, except infrastructure faults.
A sweep holds one evaluation of the same tasks per temperature, in `temperature-0.7/` and so on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.environment import prepare_workspace
from hone.evaluate import results
from hone.evaluate.errors import EvaluateError
from hone.evaluate.settings import EvaluateSettings, parse_slice
from hone.rollout.episode import Episode, RolloutContext, retry_infrastructure_faults, run_episode
from hone.rollout.groups import seed_of
from hone.rollout.lock import RunLock
from hone.rollout.store import Store
from hone.tasks.errors import first_few
from hone.tasks.settings import SelectSettings
from hone.tasks.sources import select
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread, task_group
from hone.utils.differences import differences
from hone.utils.errors import writing
from hone.utils.files import check_writable, write_file
from hone.utils.jsonl import drop_partial_line

RESULTS, SUMMARY, SWEEP = "results.jsonl", "summary.json", "sweep.json"
PREDICTIONS, PREDICTIONS_BY_ID = "preds.jsonl", "preds.json"
IDENTITY = "identity.json"  # settings, weights and tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalInfo:
    """Description of the evaluated policy, tasks and settings, as stored in the evaluation's files."""

    model: str  # the model's folder or name; a scripted agent's kind
    data: str  # where the tasks come from
    seed: int
    identity: Mapping[str, Any]  # JSON; equal if and only if two evaluations may share a directory
    trainable: bool  # whether trajectories hold the tokens that the engine sampled
    args: Mapping[str, Any]  # every setting, for summary.json
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further keys of each meta.json


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProgress:
    """Progress of an evaluation; passed to the callback after each sample."""

    planned: int
    ended: int
    resolved: int
    cost: float = 0.0  # so far


@dataclass(slots=True, kw_only=True)
class _Evaluation:
    context: RolloutContext
    settings: EvaluateSettings
    info: EvalInfo
    out: Path
    store: Store
    running: asyncio.Semaphore  # bounds the concurrent samples
    rows: dict[results.Key, results.Result] = field(default_factory=dict[results.Key, results.Result])


async def evaluate(
    tasks: Sequence[Task],
    context: RolloutContext,
    settings: EvaluateSettings,
    out: Path,
    info: EvalInfo,
    *,
    progress: Callable[[EvalProgress], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluate and return the summary, which is also in `out/summary.json`.

    Rollout ids are `<task>-<sample>`, so equal seeds give equal replies. A sample with an infrastructure
    fault is tried `context.settings.attempts` times, then counted in `errors`; the next call runs it again.

    Raises:
        EvaluateError: `out` holds results of another evaluation, or two tasks have one id.
        LedgerError: another process uses `out`.
        StoreError, TaskError: a rollout cannot be stored, or a task's repository cannot be prepared.
    """
    if len({task.id for task in tasks}) != len(tasks):
        raise EvaluateError("two tasks have the same id: give each task its own id")
    with writing(out, EvaluateError):
        lock = RunLock(out)
    with lock:
        claim(out, info.identity)
        drop_partial_line(out / RESULTS)
        evaluation = _Evaluation(
            context=context,
            settings=settings,
            info=info,
            out=out,
            store=Store(out / "rollouts"),
            running=asyncio.Semaphore(context.settings.concurrent_episodes),
            rows=results.read(out / RESULTS),
        )
        await run_in_thread(evaluation.store.sweep, results.directories(out / RESULTS))
        await _run(evaluation, tasks, progress)
        return await run_in_thread(_conclude, evaluation, tasks)


def require_own(out: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Raise EvaluateError when a directory holds results of another evaluation, or any and not `resume`.

    Also when it cannot be written.
    """
    with writing(out, EvaluateError):
        check_writable(out)
    if not any((folder / RESULTS).is_file() for folder in (out, *out.glob("temperature-*"))):
        return
    path = out / IDENTITY
    if not path.is_file():
        raise EvaluateError(
            f"{out} holds results of an evaluation of an earlier version of Hone ({IDENTITY} is missing): "
            "choose another directory"
        )
    if found := differences(json.loads(path.read_text()), dict(identity), str(out)):
        raise EvaluateError(
            f"{out} holds another evaluation ({first_few(found, separator='; ')}): use the same model, tasks "
            "and settings, or choose another directory"
        )
    if not resume:
        raise EvaluateError(
            f"{out} already holds results of this evaluation: add --resume to continue it, or choose "
            "another directory"
        )


def claim(out: Path, identity: Mapping[str, Any]) -> None:
    """Bind a directory to an evaluation, which begins or continues there.

    Raises EvaluateError when the directory cannot be written or holds results of another evaluation.
    """
    require_own(out, identity, resume=True)
    with writing(out, EvaluateError):
        out.mkdir(parents=True, exist_ok=True)
    write(out / IDENTITY, json.dumps(dict(identity), indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """Write a file atomically. Raises EvaluateError."""
    with writing(path, EvaluateError):
        write_file(path, text)


def _conclude(evaluation: _Evaluation, tasks: Sequence[Task]) -> dict[str, Any]:
    """Write the summary and the predictions of all results; return the summary."""
    out, info = evaluation.out, evaluation.info
    rows = {key: evaluation.rows[key] for key in _wanted(tasks, evaluation.settings)}
    summary = results.summarise(
        rows.values(),
        evaluation.settings,
        model=info.model,
        data=info.data,
        trainable=info.trainable,
        args=info.args,
        uses_policy=evaluation.context.new_chat is not None,
    )
    predictions = results.predictions(rows, evaluation.store.root, info.model)
    write(out / PREDICTIONS, "".join(json.dumps(each) + "\n" for each in predictions.values()))
    write(out / PREDICTIONS_BY_ID, json.dumps(predictions, indent=1) + "\n")
    write(out / SUMMARY, json.dumps(summary, indent=1) + "\n")
    return summary


def _wanted(tasks: Sequence[Task], settings: EvaluateSettings) -> list[results.Key]:
    return [(task.id, sample) for task in tasks for sample in range(settings.samples)]


async def _run(
    evaluation: _Evaluation, tasks: Sequence[Task], progress: Callable[[EvalProgress], None]
) -> None:
    wanted = _wanted(tasks, evaluation.settings)

    def done(key: results.Key) -> bool:
        return key in evaluation.rows and not results.is_fault(evaluation.rows[key])

    def report_progress() -> None:
        ended = [evaluation.rows[key] for key in wanted if key in evaluation.rows]
        prompt, sampled = (sum(result[name] for result in ended) for name in ("prompt_tokens", "tokens"))
        progress(
            EvalProgress(
                planned=len(wanted),
                ended=len(ended),
                resolved=sum(result["resolved"] for result in ended),
                cost=evaluation.settings.cost(prompt, sampled),
            )
        )

    async def sample(task: Task, index: int) -> None:
        async with evaluation.running:
            await _sample(evaluation, task, index)
        report_progress()

    report_progress()
    async with task_group() as jobs:
        for task in tasks:
            for index in range(evaluation.settings.samples):
                if not done((task.id, index)):
                    jobs.create_task(sample(task, index))


async def _sample(evaluation: _Evaluation, task: Task, index: int) -> None:
    """Run one sample, retry infrastructure faults, and append each attempt to the results."""
    context = evaluation.context
    workspace = await prepare_workspace(task, context.provider, context.workspaces)
    group = task.metadata.get(evaluation.settings.group_by) or task.environment.repo or None

    async def attempt() -> Trajectory:
        episode = Episode(
            task=task,
            rollout_id=f"{task.id}-{index}",
            group_id=task.id,
            workspace=workspace,
            seed=seed_of(evaluation.info.seed, task.id, index),
        )
        trajectory = await run_episode(episode, context)
        run_dir = await run_in_thread(
            evaluation.store.save_sample, trajectory, index=index, meta=evaluation.info.meta
        )
        result = results.row(trajectory, index, None if group is None else str(group), run_dir)
        results.append(evaluation.out / RESULTS, result)
        evaluation.rows[task.id, index] = result
        return trajectory

    await retry_infrastructure_faults(attempt, context.settings)


def choose(tasks: Sequence[Task], settings: EvaluateSettings) -> list[Task]:
    """Return the tasks that `ids_file` lists, then the `slice` of these, in their order.

    Raises TaskError for an unknown id, EvaluateError when no task is left.
    """
    if not tasks:
        raise EvaluateError(f"the set {settings.split} holds no task: choose another set or other tasks")
    listed = tasks
    if settings.ids_file is not None:
        listed = select(tasks, SelectSettings(ids_file=settings.ids_file))
    chosen = list(listed[parse_slice(settings.slice)])
    if not chosen:
        raise EvaluateError(
            f"the slice {settings.slice} holds none of the {len(listed)} tasks: choose another"
        )
    return chosen


def sweep_directory(temperature: float) -> str:
    """Return the name of the evaluation's directory below that of the sweep."""
    return f"temperature-{temperature:g}"


def conclude_sweep(out: Path, summaries: Mapping[float, Mapping[str, Any]]) -> dict[str, Any]:
    """Write `sweep.json`, the figures of all temperatures in order; return its content."""
    evaluations = [
        {
            "temperature": temperature,
            "directory": sweep_directory(temperature),
            **{name: value for name, value in summary.items() if name != "args"},
        }
        for temperature, summary in summaries.items()
    ]
    first = next(iter(summaries.values()))
    sweep = {"model": first["model"], "data": first["data"], "evaluations": evaluations}
    write(out / SWEEP, json.dumps(sweep, indent=1) + "\n")
    return sweep
