"""The page of an evaluation: its figures, tasks and distributions, also before it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hone.evaluate import results
from hone.evaluate.report import distributions
from hone.evaluate.settings import EvaluateSettings
from hone.view.reader import RunReader
from hone.view.records import EvaluationPage
from hone.view.runs import count_outcomes, read_summary, run_line


def evaluation_page(reader: RunReader) -> EvaluationPage:
    """Return the page of an evaluation; its figures are those of the results so far until it has ended."""
    rows = [dict(row) for row in reader.results()]
    settings = reader.settings()
    prices = EvaluateSettings() if settings is None else settings.evaluate
    summary = read_summary(reader) or results.summarise(
        rows, prices, model="", data="", trainable=False, args={}
    )
    return EvaluationPage(
        line=run_line(reader),
        summary=summary,
        outcomes=count_outcomes(row["exit_status"] for row in rows),
        tasks=_tasks(rows),
        distributions=tuple(asdict(each) for each in distributions(rows, prices)),
    )


def _tasks(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the samples of each task; infrastructure faults are among its rollouts, not its samples."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda each: (each["instance_id"], each["sample"])):
        by_task.setdefault(row["instance_id"], []).append(row)
    return tuple(_task(name, samples) for name, samples in by_task.items())


def _task(name: str, samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    valid = [row for row in samples if not results.is_fault(dict(row))]
    return {
        "id": name,
        "group": samples[0]["group"],
        "resolved": sum(row["resolved"] for row in valid),
        "samples": len(valid),
        "score": max((row["score"] or 0.0 for row in valid), default=None),
        "outcomes": dict(Counter(str(row["exit_status"]) for row in samples)),
        "rollouts": [row["run_dir"] for row in samples],
    }
