"""The data card of a file of admitted tasks: how each task was decided, and what the file must hold.

Invariant: the counts of a card follow from its `tasks`; `check_card` counts again.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hone import __version__
from hone.curate.record import Record, Report
from hone.grading.variation import variation_of
from hone.tasks.controls import OPPOSITE, Kind
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.tasks.sources import PROOF
from hone.types import Control, Task
from hone.utils.text import digest

SCHEMA = 1
_FIELDS = ("schema", "counts", "tasks")


def make_card(
    report: Report, *, source: str, file: str, settings: Mapping[str, Any], repeats: int
) -> dict[str, Any]:
    """Return the card as JSON values.

    Args:
        source: name of the file or recipe that was validated.
        file: name of the file of admitted tasks.
        settings: those that change results, by their dotted names.
    """
    tasks = [_entry(record) for record in report.records()]
    return {
        "schema": SCHEMA,
        "source": source,
        "file": file,
        "hone": __version__,
        "settings": dict(settings),
        "repeats": repeats,
        "runs": [dataclasses.asdict(variation_of(run)) for run in range(repeats)],
        "counts": count(tasks),
        "versions": _versions(report.records()),
        "times": _times(report.records()),
        "tasks": tasks,
    }


def read_card(path: Path) -> dict[str, Any]:
    """Return the card in a file. Raises TaskError."""
    try:
        card = json.loads(path.read_bytes())
    except OSError as error:
        raise TaskError(f"cannot read the data card {path}: {error.strerror}") from None
    except ValueError as error:
        raise TaskError(f"{path} is not a data card: it is not JSON ({error})") from None
    missing = [name for name in _FIELDS if not isinstance(card, dict) or name not in card]
    if missing:
        raise TaskError(f"{path} is not a data card: it has no {', '.join(missing)}")
    if card["schema"] != SCHEMA:
        raise TaskError(f"{path} has the schema {card['schema']}, but this version of Hone reads {SCHEMA}")
    return card


def check_card(card: Mapping[str, Any], tasks: Iterable[Task]) -> list[str]:
    """Return how a file of tasks differs from what its card says, one sentence each; empty: it does not."""
    found = count(card["tasks"])
    problems = [
        f"the card counts {name} as {card['counts'].get(name)!r}, but its own tasks give {found[name]!r}"
        for name in found
        if card["counts"].get(name) != found[name]
    ]
    admitted = {each["id"]: each for each in card["tasks"] if each["admitted"]}
    refused = {each["id"]: each for each in card["tasks"] if not each["admitted"]}
    for task in tasks:
        entry = admitted.pop(task.id, None)
        if entry is None:
            known = "is refused" if task.id in refused else "is not in the card, or is there twice"
            problems.append(f"task {task.id} {known}")
        elif content_hash(task) != entry["content"]:
            problems.append(f"task {task.id} has another problem, environment or checks")
        elif _proof_of(task) != entry["proof"]:
            problems.append(f"task {task.id} has other controls, excused tests or another proof")
    return problems + [f"task {task_id} is missing" for task_id in admitted]


def count(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of a card, from its entries of tasks."""
    admitted = [each for each in tasks if each["admitted"]]
    kinds: Counter[str] = Counter()
    for each in admitted:
        kinds.update(each["controls"])
    causes = Counter(cause for each in tasks for cause in set(each["flaky"].values()))
    return {
        "tasks": len(tasks),
        "admitted": len(admitted),
        "refused": dict(Counter(each["reason"] for each in tasks if not each["admitted"]).most_common()),
        "tests": sum(each["tests"] for each in admitted),
        "controlled": sum(each["controlled"] for each in admitted),
        "controls": dict(kinds.most_common()),
        "flaky": dict(causes.most_common()),
    }


def kind_of(control: Control) -> Kind:
    """Return what a control changes, by its text."""
    old, new = control.old, control.new
    if new == f"[{old}]":
        return Kind.FORM
    if not old:
        return Kind.PARAMETER if new.lstrip().startswith(new.split()[0] + " = not ") else Kind.TRUTH
    return Kind.TRUTH if new == f"not ({old})" or OPPOSITE.get(old) == new else Kind.VALUE


def _entry(record: Record) -> dict[str, Any]:
    admitted = record.reason is None
    return {
        "id": record.task_id,
        "content": record.content,
        "admitted": admitted,
        "reason": None if record.reason is None else record.reason.value,
        "detail": record.detail,
        "gold": sum(record.gold),
        "empty": sum(record.empty),
        "runs": len(record.gold),
        "varied": list(record.varied),
        "flaky": dict(record.flaky),
        "tests": record.tests,
        "controlled": record.controlled,
        "controls": dict(Counter(kind_of(each).name.lower() for each in record.controls)),
        "proof": _proof_hash(record.controls, record.excused, record.proof) if admitted else None,
        "seconds": round(record.seconds, 3),
        "memory_mib": round(record.memory_mib, 1),
        "elapsed_s": round(record.elapsed_s, 3),
    }


def _proof_of(task: Task) -> str:
    return _proof_hash(task.checks.controls, task.checks.excused, task.metadata.get(PROOF))


def _proof_hash(controls: Sequence[Control], excused: Sequence[str] | None, proof: Any) -> str:
    """Return a hash of what validation adds to a task; 64 hex digits."""
    edits = [dataclasses.asdict(control) for control in controls]
    return digest({"controls": edits, "excused": excused and list(excused), "validation": proof})


def _versions(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return each combination of versions with the number of its tasks."""
    found = Counter(tuple(sorted(record.versions.items())) for record in records if record.versions)
    return [{**dict(versions), "tasks": tasks} for versions, tasks in found.most_common()]


def _times(records: Iterable[Record]) -> dict[str, Any]:
    """Return when the validation ran, and the seconds of a task."""
    spans = [
        (record.finished_at - record.elapsed_s, record.finished_at, record.elapsed_s) for record in records
    ]
    if not spans:
        return {}
    elapsed = [seconds for _, _, seconds in spans]
    return {
        "started": _iso(min(start for start, _, _ in spans)),
        "finished": _iso(max(end for _, end, _ in spans)),
        "task_seconds": {
            "total": round(sum(elapsed), 1),
            "median": round(statistics.median(elapsed), 3),
            "largest": round(max(elapsed), 3),
        },
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
