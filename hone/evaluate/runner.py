"""Run a fixed policy, or a scripted agent, over a task set through the same episode as training.

Append-only and resumable: what has ended stands in `results.jsonl` and is not run again, infrastructure
faults excepted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.environment import prepare_workspace
from hone.evaluate import report, results
from hone.evaluate.errors import EvaluateError
from hone.evaluate.rollout_page import ROLLOUT_PAGE, rollout_page
from hone.evaluate.settings import EvaluateSettings
from hone.rollout.dispatcher import first_error, seed_of
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.lock import RunLock
from hone.rollout.store import Store
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread
from hone.utils.files import write_file

RESULTS, SUMMARY, REPORT = "results.jsonl", "summary.json", "report.html"
PREDICTIONS, PREDICTIONS_BY_ID = "preds.jsonl", "preds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured, as the files of the evaluation name it."""

    model: str  # the model's folder or name; a scripted agent's kind
    data: str  # where the tasks come from
    seed: int
    fingerprint: str  # equal exactly when two evaluations may share a directory
    trainable: bool  # whether trajectories hold the tokens that the engine sampled
    args: Mapping[str, Any]  # every setting, for summary.json
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # beside the others in each meta.json


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProgress:
    """How far an evaluation is; given to the callback after each sample."""

    planned: int
    ended: int
    resolved: int
    cost: float = 0.0  # so far


@dataclass(slots=True, kw_only=True)
class _Evaluation:
    context: RolloutContext
    settings: EvaluateSettings
    subject: Subject
    out: Path
    store: Store
    places: asyncio.Semaphore
    rows: dict[results.Key, results.Row] = field(default_factory=dict[results.Key, results.Row])


async def evaluate(
    tasks: Sequence[Task],
    context: RolloutContext,
    settings: EvaluateSettings,
    out: Path,
    subject: Subject,
    *,
    progress: Callable[[EvalProgress], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluate and return the summary, which is also in `out/summary.json`.

    Rollout ids are `<task>-<sample>`, so equal seeds give equal replies. An infrastructure fault is tried
    `context.settings.attempts` times and then counted under `errors`; the next call runs it again.

    Raises EvaluateError when `out` holds an evaluation with another fingerprint, LedgerError when another
    process works there, StoreError, TaskError.
    """
    if len({task.id for task in tasks}) != len(tasks):
        raise EvaluateError("two tasks have the same id: results could not be told apart")
    with RunLock(out):
        claim(out, subject.fingerprint, resume=True)
        evaluation = _Evaluation(
            context=context,
            settings=settings,
            subject=subject,
            out=out,
            store=Store(out / "rollouts"),
            places=asyncio.Semaphore(context.settings.concurrent_episodes),
            rows=results.read(out / RESULTS),
        )
        await run_in_thread(evaluation.store.sweep, results.directories(out / RESULTS))
        await _run(evaluation, tasks, progress)
        return await run_in_thread(_conclude, evaluation, tasks)


def claim(out: Path, fingerprint: str, *, resume: bool) -> None:
    """Tie a directory to what is evaluated there.

    Raises EvaluateError when it cannot be written, holds another evaluation, or holds results of this one
    and `resume` is false.
    """
    path = out / "fingerprint"
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = path.read_text() if path.is_file() else None
    except OSError as error:
        raise _unwritable(out, error) from error
    begun = any((folder / RESULTS).is_file() for folder in (out, *out.glob("temperature-*")))
    if held is None and not begun:
        write(path, fingerprint)
    elif held != fingerprint:
        raise EvaluateError(
            f"{out} holds another evaluation: run with its model, tasks and settings, or choose another "
            "directory"
        )
    elif begun and not resume:
        raise EvaluateError(
            f"{out} already holds results of this evaluation: add --resume to go on where it stopped, or "
            "choose another directory"
        )


def write(path: Path, text: str) -> None:
    """Write a file atomically. Raises EvaluateError."""
    try:
        write_file(path, text)
    except OSError as error:
        raise _unwritable(path, error) from error


def _conclude(evaluation: _Evaluation, tasks: Sequence[Task]) -> dict[str, Any]:
    """Write what is made of all results; returns the summary."""
    out, subject = evaluation.out, evaluation.subject
    rows = {key: evaluation.rows[key] for key in _wanted(tasks, evaluation.settings)}
    summary = results.summarise(
        rows.values(),
        evaluation.settings,
        model=subject.model,
        data=subject.data,
        trainable=subject.trainable,
        args=subject.args,
    )
    predictions = results.predictions(rows, evaluation.store.root, subject.model)
    write(out / PREDICTIONS, "".join(json.dumps(each) + "\n" for each in predictions.values()))
    write(out / PREDICTIONS_BY_ID, json.dumps(predictions, indent=1) + "\n")
    write(out / SUMMARY, json.dumps(summary, indent=1) + "\n")
    write(out / REPORT, report.evaluation_page(list(rows.values()), summary, evaluation.settings))
    return summary


def _wanted(tasks: Sequence[Task], settings: EvaluateSettings) -> list[results.Key]:
    return [(task.id, sample) for task in tasks for sample in range(settings.samples)]


async def _run(
    evaluation: _Evaluation, tasks: Sequence[Task], progress: Callable[[EvalProgress], None]
) -> None:
    wanted = _wanted(tasks, evaluation.settings)

    def done(key: results.Key) -> bool:
        return key in evaluation.rows and not results.is_fault(evaluation.rows[key])

    def tell() -> None:
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
        async with evaluation.places:
            await _sample(evaluation, task, index)
        tell()

    tell()
    try:
        async with asyncio.TaskGroup() as jobs:
            for task in tasks:
                for index in range(evaluation.settings.samples):
                    if not done((task.id, index)):
                        jobs.create_task(sample(task, index))
    except BaseExceptionGroup as failed:
        raise first_error(failed) from failed


async def _sample(evaluation: _Evaluation, task: Task, index: int) -> None:
    """One sample, again after an infrastructure fault, and its line in the results."""
    context = evaluation.context
    workspace = await prepare_workspace(task, context.provider, context.workspaces)
    group = task.metadata.get(evaluation.settings.group_by) or task.environment.repo or None
    for attempt in range(context.settings.attempts):
        if attempt:
            await asyncio.sleep(context.settings.retry_delay_s * 2 ** (attempt - 1))
        episode = Episode(
            task=task,
            rollout_id=f"{task.id}-{index}",
            group_id=task.id,
            workspace=workspace,
            seed=seed_of(evaluation.subject.seed, task.id, index),
        )
        trajectory = await run_episode(episode, context)
        run_dir = await run_in_thread(_keep, evaluation, trajectory, index)
        result = results.row(trajectory, index, None if group is None else str(group), run_dir)
        results.append(evaluation.out / RESULTS, result)
        evaluation.rows[task.id, index] = result
        if not results.is_fault(result):
            return


def _keep(evaluation: _Evaluation, trajectory: Trajectory, index: int) -> str:
    """Store a rollout with its page; a directory that no line of the results names is swept later."""
    run_dir = evaluation.store.save_sample(trajectory, index=index, meta=evaluation.subject.meta)
    write(evaluation.store.root / run_dir / ROLLOUT_PAGE, rollout_page(trajectory))
    return run_dir


def _unwritable(path: Path, error: OSError) -> EvaluateError:
    reason = os.strerror(error.errno or 0).lower()
    return EvaluateError(f"cannot write {path} ({reason}): choose another directory, or mend that")
