"""Selection of tasks by repository, id, difficulty and length, in the order of a seed."""

from __future__ import annotations

import difflib
import random
from collections.abc import Collection, Sequence
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.tasks.settings import SelectSettings
from hone.types import Task

_COLUMNS = ("difficulty", "gpt_difficulty")  # of SWE-bench Verified and of KodCode
_SHOWN = 5  # unknown names in an error


def select(tasks: Sequence[Task], settings: SelectSettings) -> tuple[Task, ...]:
    """Return the selected tasks, in their order or in the order of the seed.

    Raises TaskError for a repository, an id or a difficulty that no task has, and when no task is left.
    """
    chosen = list(tasks)
    if settings.ids_file is not None:
        ids = read_ids(settings.ids_file)
        _check(ids, {task.id for task in tasks}, f"for {settings.ids_file}:")
        listed = set(ids)
        chosen = [task for task in chosen if task.id in listed]
    if settings.repositories:
        _check(settings.repositories, {task.environment.repo for task in tasks} - {""}, "of")
        chosen = [task for task in chosen if task.environment.repo in settings.repositories]
    if settings.difficulty:
        _check(settings.difficulty, {difficulty(task) for task in tasks} - {""}, "of the difficulty")
        chosen = [task for task in chosen if difficulty(task) in settings.difficulty]
    longest = settings.max_problem_chars
    chosen = [
        task
        for task in chosen
        if len(task.problem) >= settings.min_problem_chars
        and (longest is None or len(task.problem) <= longest)
    ]
    if settings.seed is not None:
        random.Random(settings.seed).shuffle(chosen)
    if tasks and not chosen:
        raise TaskError(f"none of the {len(tasks)} tasks is selected: relax tasks.select")
    return tuple(chosen[: settings.limit])


def difficulty(task: Task) -> str:
    """Return `metadata.difficulty` or the column of the task's row; empty if there is none."""
    row = task.metadata.get("row")
    columns = row if isinstance(row, dict) else {}
    named = (task.metadata.get("difficulty"), *(columns.get(column) for column in _COLUMNS))
    return next((str(value) for value in named if value is not None), "")


def read_ids(path: Path) -> list[str]:
    """Return the ids of an instance list: one per line, `#` starts a comment. Raises TaskError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read ids from {path}: {getattr(error, 'strerror', None) or error}") from None
    ids = [line.partition("#")[0].strip() for line in lines]
    if not any(ids):
        raise TaskError(f"{path} lists no ids")
    return list(dict.fromkeys(name for name in ids if name))


def _check(asked: Sequence[str], known: Collection[str], what: str) -> None:
    unknown = [name for name in asked if name not in known]
    if not unknown:
        return
    shown = []
    for name in unknown[:_SHOWN]:
        nearest = difflib.get_close_matches(name, known, n=1)
        shown.append(f"{name} (did you mean {nearest[0]}?)" if nearest else name)
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    raise TaskError(f"there is no task {what} {', '.join(shown)}{more}")
