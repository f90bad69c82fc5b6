"""Grade a file of predictions in the SWE-bench harness's format: concurrently, each once, resumable.

DIR/<instance_id>/report.json       the harness's schema, with outcome, evidence and score added
DIR/<instance_id>/patch.diff        the graded patch
DIR/<instance_id>/test_output.txt   the end of the tests' output, or why none ran
DIR/<instance_id>/graded.json       hash of the verdict's inputs; an equal one is not graded again
DIR/summary.json                    the harness's run report over all instances
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.environment.environment import has_own_repository
from hone.grading.errors import GraderError
from hone.grading.grade import Grader
from hone.grading.settings import GradingSettings
from hone.grading.verdict import graded_entry, outcome_of, summarise, ungraded_entry
from hone.outcomes import Outcome
from hone.sandbox.contract import Provider, SandboxError
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.formats import content_hash
from hone.tasks.rows import parse
from hone.types import Task
from hone.utils.concurrency import run_in_thread
from hone.utils.files import write_file

GRADER = 2  # raised when equal inputs may get another verdict
GOLD = "gold"  # instead of a file: each task's reference patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    instance_id: str
    patch: str  # "" without a patch
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The rows of a file: predictions, or reasons why a row is refused."""

    predictions: tuple[Prediction, ...]
    refused: tuple[str, ...]  # one sentence each


def read_predictions(path: Path, tasks: Sequence[Task]) -> Predictions:
    """Read a .jsonl file, a .json file with a list or with an object by id, or the word `gold`.

    Raises TaskError when the file cannot be read.
    """
    if str(path) == GOLD:
        gold = (Prediction(instance_id=task.id, patch=task.checks.gold_patch, model=GOLD) for task in tasks)
        return Predictions(predictions=tuple(gold), refused=())
    found: dict[str, Prediction] = {}
    refused: list[str] = []
    for number, row in enumerate(_rows(path), start=1):
        try:
            prediction = _prediction(row)
            if prediction.instance_id in found:
                raise TaskError(f"{prediction.instance_id} has an earlier prediction")
        except TaskError as error:
            refused.append(f"{path}: row {number}: {error}")
        else:
            found[prediction.instance_id] = prediction
    return Predictions(predictions=tuple(found.values()), refused=tuple(refused))


def _rows(path: Path) -> Iterable[Any]:
    if path.suffix == ".json":
        try:
            rows = parse(path.read_bytes())
        except (OSError, TaskError) as error:
            raise TaskError(f"cannot read predictions from {path}: {error}") from None
        if isinstance(rows, dict):
            return [
                {"instance_id": name, **row} if isinstance(row, dict) else row for name, row in rows.items()
            ]
    return read_rows(path)


def _prediction(row: Any) -> Prediction:
    if isinstance(row, TaskError):
        raise row
    if not isinstance(row, dict) or not isinstance(row.get("instance_id"), str) or not row["instance_id"]:
        raise TaskError("a prediction must be an object with an `instance_id`")
    name, patch, model = row["instance_id"], row.get("model_patch"), row.get("model_name_or_path")
    if name in (".", "..") or "/" in name or not name.isprintable():
        raise TaskError(f"the id {name!r} cannot name a directory")
    if patch is not None and not isinstance(patch, str):
        raise TaskError(f"the `model_patch` of {name} is not a string")
    return Prediction(instance_id=name, patch=patch or "", model=model if isinstance(model, str) else "")


async def grade_predictions(
    predictions: Sequence[Prediction],
    tasks: Sequence[Task],
    grader: Grader,
    *,
    out: Path,
    progress: Callable[[str, Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Grade the predictions that are not graded yet, and return the summary.

    A prediction without a verdict is reported as `grader_error`, or as `crashed` after an error that nothing
    expects; the next call grades it again.

    Args:
        progress: called with each id and its entry.
    """
    by_id = {task.id: task for task in tasks}
    slots = asyncio.Semaphore(grader.settings.concurrency)
    entries: dict[str, Mapping[str, Any]] = {}

    async def one(prediction: Prediction, task: Task) -> None:
        async with slots:
            folder = out / prediction.instance_id
            key = _key(task, prediction.patch, await _digest(task, grader.provider), grader.settings)
            entry = await asyncio.to_thread(_read_entry, folder, prediction.instance_id, key)
            if entry is None:
                entry, log = await _grade(task, prediction.patch, grader)
                await run_in_thread(_write, folder, prediction, entry, log, key)
        entries[prediction.instance_id] = entry
        if progress:
            progress(prediction.instance_id, entry)

    async with asyncio.TaskGroup() as group:
        for prediction in predictions:
            if prediction.instance_id in by_id:
                group.create_task(one(prediction, by_id[prediction.instance_id]))
    summary = summarise(entries, tasks, [prediction.instance_id for prediction in predictions])
    await run_in_thread(_write_json, out / "summary.json", summary)
    return summary


async def _grade(task: Task, patch: str, grader: Grader) -> tuple[dict[str, Any], str]:
    """Return the entry of the report, and the log."""
    if not patch.strip():
        return ungraded_entry(Outcome.NO_PATCH), ""
    started = asyncio.get_running_loop().time()
    try:
        verdict = await grader.grade_uncached(task, patch)
    except (GraderError, SandboxError) as error:
        return ungraded_entry(Outcome.GRADER_ERROR, str(error)), str(error)
    except Exception as error:  # a patch may reach a defect of the grader
        reason = f"{type(error).__name__}: {error}"
        return ungraded_entry(Outcome.CRASHED, reason), "".join(traceback.format_exception(error))
    entry = graded_entry(task, verdict)
    if outcome_of(verdict) is Outcome.UNRESOLVED and not verdict.applied:
        entry["evidence"] = verdict.log.strip()
    entry["whole_seconds"] = asyncio.get_running_loop().time() - started
    return entry, verdict.log


async def _digest(task: Task, provider: Provider) -> str:
    """Return the image's digest: a changed image of the same name is graded again."""
    if not has_own_repository(task.environment):
        return ""
    try:
        return await provider.digest(task.environment.image)
    except SandboxError:  # the grading reports it
        return ""


def _key(task: Task, patch: str, image: str, settings: GradingSettings) -> str:
    found = repr((task.checks.controls, task.checks.excused))  # by validation
    parts = [str(GRADER), content_hash(task), found, image, str(settings.venv or ""), patch]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _read_entry(folder: Path, name: str, key: str) -> dict[str, Any] | None:
    """Return the complete entry of an earlier run with the same task, patch and image, or None."""
    try:
        if json.loads((folder / "graded.json").read_text())["key"] != key:
            return None
        return json.loads((folder / "report.json").read_text())[name]
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


def _write(folder: Path, prediction: Prediction, entry: dict[str, Any], log: str, key: str) -> None:
    """Write the results; `graded.json` comes last and marks them as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graded.json").unlink(missing_ok=True)
    (folder / "patch.diff").write_bytes(_bytes_of(prediction.patch))
    (folder / "test_output.txt").write_bytes(_bytes_of(log))
    _write_json(folder / "report.json", {prediction.instance_id: entry})
    if entry["outcome"] not in (Outcome.GRADER_ERROR, Outcome.CRASHED):  # the next call grades these again
        _write_json(folder / "graded.json", {"key": key, "grader": GRADER, "model": prediction.model})


def _bytes_of(text: str) -> bytes:
    """Return the bytes that `text` was decoded from, or, where it has other surrogates, their escapes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(value, indent=2), durable=True)
