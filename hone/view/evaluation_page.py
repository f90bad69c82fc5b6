"""The page of an evaluation: its figures, tasks and distributions, also before it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hone.evaluate import results
from hone.evaluate.settings import EvaluateSettings
from hone.view.distributions import distributions
from hone.view.files import OF_EVALUATION, present
from hone.view.reader import RunReader
from hone.view.records import EvaluationPage, SampleLine, TaskLine
from hone.view.runs import outcome_totals, read_summary, run_line


def evaluation_page(reader: RunReader) -> EvaluationPage:
    """Return the page of an evaluation; its figures are those of the results so far until it has ended."""
    rows = sorted(map(dict, reader.results()), key=lambda row: (row["instance_id"], row["sample"]))
    prices = _prices(reader)
    ended = read_summary(reader)
    summary = ended or results.summarise(rows, prices, model="", data="", trainable=False, args={})
    return EvaluationPage(
        line=run_line(reader),
        summary=summary,
        notes=tuple(_notes(summary, has_ended=bool(ended))),
        outcomes=outcome_totals(row["exit_status"] for row in rows),
        tasks=_tasks(rows),
        samples=tuple(map(_sample, rows)),
        distributions=tuple(distributions(rows, prices)),
        files=present(reader.directory, OF_EVALUATION),
    )


def _prices(reader: RunReader) -> EvaluateSettings:
    """Return the settings that hold the prices of tokens; the defaults where they cannot be read."""
    try:
        return EvaluateSettings.model_validate(reader.values().get("evaluate", {}))
    except ValidationError:  # written by another version
        return EvaluateSettings()


def _notes(summary: Mapping[str, Any], *, has_ended: bool) -> Iterator[str]:
    if has_ended and summary["engine_s"] and not summary["trainable"]:
        yield (
            "These trajectories hold no token ids: they can be read and graded again, but never trained on."
        )
    if summary["problem"]:
        yield summary["problem"]
    elif summary["errors"]:
        yield (
            f"{summary['errors']} of {summary['total']} samples ended in an infrastructure fault. They say "
            "nothing about the policy and are in no rate; run the same command again to try them again."
        )


def _tasks(rows: Sequence[results.Result]) -> tuple[TaskLine, ...]:
    by_task: dict[str, list[results.Result]] = {}
    for row in rows:
        by_task.setdefault(row["instance_id"], []).append(row)
    return tuple(sorted((_task(name, samples) for name, samples in by_task.items()), key=_difficulty))


def _task(name: str, rows: Sequence[results.Result]) -> TaskLine:
    valid = [row for row in rows if not results.is_fault(row)]
    resolved = sum(row["resolved"] for row in valid)
    solved = "never" if not resolved else "always" if resolved == len(valid) else "sometimes"
    return TaskLine(
        id=name,
        group=rows[0]["group"],
        solved=solved if valid else "",
        resolved=resolved,
        samples=len(valid),
        score=max((row["score"] or 0.0 for row in valid), default=None),
        outcomes=dict(Counter(row["exit_status"] for row in rows)),
        rollouts=tuple(row["run_dir"] for row in rows),
    )


def _difficulty(task: TaskLine) -> tuple[bool, float, float, str]:
    """Sort key: tasks by resolve rate, then by best score; those without a sample that counts come last."""
    return (not task.samples, task.resolved / max(1, task.samples), task.score or 0.0, task.id)


def _sample(row: results.Result) -> SampleLine:
    return SampleLine(
        task_id=row["instance_id"],
        sample=row["sample"],
        directory=row["run_dir"],
        outcome=row["exit_status"],
        resolved=row["resolved"],
        score=row["score"],
        turns=row["n_steps"],
        sampled_tokens=row["tokens"],
        seconds=row["elapsed"],
    )
