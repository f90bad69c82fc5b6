"""The tasks of a run, from the file that its recipe names, and their pages."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path

from hone.rollout.ledger import Entry
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import CURRICULUM, load_splits
from hone.types import Checks, Task
from hone.utils.errors import HoneError
from hone.view.curve import in_baseline, rate_point
from hone.view.errors import NotFound
from hone.view.reader import RunReader
from hone.view.records import RunKind, TaskPage
from hone.view.rollouts import rows_read

BRIEF_S, LONG_S = 0.2, 3.0  # that a page waits for the tasks: one that can do without them, and theirs


def task_page(reader: RunReader, task_id: str) -> TaskPage:
    """Return the page of a task of a run. Raises NotFound for a task that the run knows nothing of."""
    rows = rows_read(reader, lambda row: row.task_id == task_id)
    task = tasks_of(reader, wait_s=LONG_S).get(task_id)
    if task is None and not rows:
        raise NotFound(f"run {reader.name} has no task {task_id!r}")
    asides = {aside.task_id: aside.reason for aside in reader.tasks_set_aside()}
    is_resolved = reader.resolved_test()
    steps = in_baseline(_entries(reader, task_id))
    return TaskPage(
        task_id=task_id,
        problem=_problem(reader, task, next((row.directory for row in rows[::-1] if row.directory), None)),
        environment={} if task is None else asdict(task.environment),
        checks={} if task is None else asdict(task.checks),
        rates=tuple(rate_point(step, ended, is_resolved) for step, ended in sorted(steps.items())),
        rows=rows,
        set_aside=asides.get(task_id),
        found=task is not None,
    )


def checks_of(reader: RunReader, task_id: str) -> Checks | None:
    """Return the checks of a task; None where its file is not at hand, or not read yet.

    The tasks of the curriculum are not made for this, but used once a page of a task has made them.
    """
    settings = reader.settings()
    if settings is None or not _is_local(settings.tasks):
        return None
    made = settings.tasks.source != CURRICULUM or _key(settings.tasks) in _LOADING
    task = tasks_of(reader, wait_s=BRIEF_S).get(task_id) if made else None
    return None if task is None else task.checks


def tasks_of(reader: RunReader, *, wait_s: float) -> dict[str, Task]:
    """Return id -> task of the run's recipe; {} without one, or where its files are not on this machine.

    The tasks are read once in this process, in a thread, since those of the curriculum take seconds to make
    again; {} until then, after `wait_s`.
    """
    settings = reader.settings()
    if settings is None or not _is_local(settings.tasks):
        return {}
    with _MUTEX:
        key = _key(settings.tasks)
        loading = _LOADING.get(key)
        if loading is None:
            loading = _LOADING[key] = _Loading(settings.tasks)
    loading.join(wait_s)
    return loading.tasks


class _Loading(threading.Thread):
    """Reads the tasks of a recipe in the background."""

    def __init__(self, settings: TasksSettings) -> None:
        super().__init__(name="tasks", daemon=True)
        self.tasks: dict[str, Task] = {}
        self._settings = settings
        self.start()

    def run(self) -> None:
        try:
            splits = load_splits(self._settings)
        except (HoneError, OSError, ValueError):  # the files have changed since, or are gone
            return
        self.tasks = {task.id: task for _, tasks in splits.named() for task in tasks}


_MUTEX = threading.Lock()
_LOADING: dict[str, _Loading] = {}  # by settings: many runs have the same tasks


def _key(settings: TasksSettings) -> str:
    return settings.model_dump_json()


def _is_local(settings: TasksSettings) -> bool:
    """Return whether no network is needed to read the tasks."""
    sources = (settings.source, settings.evaluation, settings.validation_source)
    return all(each in (None, CURRICULUM) or Path(str(each)).exists() for each in sources)


def _entries(reader: RunReader, task_id: str) -> list[Entry]:
    if reader.kind is not RunKind.TRAINING:
        return []
    return [entry for entry in reader.entries() if entry.task_id == task_id]


def _problem(reader: RunReader, task: Task | None, directory: str | None) -> str:
    """Return the statement; without its task, the first message of a rollout about it."""
    if task is not None:
        return task.problem
    if directory is None or not (reader.store.root / Path(directory).name / "meta.json").is_file():
        return ""
    messages = reader.store.load(directory).messages
    user = [message for message in messages if message.get("role") == "user"]
    return str(user[0].get("content", "")) if user else ""
