"""The tasks of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.files import tasks_of
from hone.tasks.hub import read_source
from hone.tasks.select import select
from hone.tasks.settings import SelectSettings, TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.tasks.workspace import tree
from hone.types import Task

CURRICULUM = "curriculum"
PROOF = "validation"  # metadata key: how the task was admitted
_SHOWN = 5  # tasks named in an error


def load_splits(settings: TasksSettings) -> Splits:
    """Return the task sets of `settings`: generated or read from files, then selected.

    A task of a file belongs to the set in its `metadata.split`, by default `train`; the tasks of an
    evaluation file are the test set.

    Raises TaskError when a file cannot be read, a task has no repository or no tests, the selection matches
    no task, or the sets overlap.
    """
    splits = generate(settings) if settings.source == CURRICULUM else _sets(Path(settings.source))
    if settings.select != SelectSettings():
        splits = _selected(splits, settings.select)
    if settings.evaluation is not None:
        splits = dataclasses.replace(splits, test=tuple(_complete(settings.evaluation)))
    if not settings.allow_overlap:
        check_disjoint(splits)
    return splits


def check_proven(settings: TasksSettings, tasks: Sequence[Task]) -> None:
    """Raise TaskError for tasks of a file without a proof of admission, unless `settings.unproven`.

    Tasks of the curriculum need none.
    """
    if settings.unproven:
        return
    unproven = [task.id for task in tasks if task.source != CURRICULUM and PROOF not in task.metadata]
    if unproven:
        more = f" and {len(unproven) - _SHOWN} more" if len(unproven) > _SHOWN else ""
        named, source = ", ".join(unproven[:_SHOWN]) + more, settings.source
        raise TaskError(
            f"{source} has no proof of admission for these tasks: {named}. Run `hone tasks validate "
            f"{source} -o admitted.jsonl` and train on that, or set tasks.unproven = true"
        )


def check_complete(task: Task) -> None:
    """Raise TaskError for a task that can never be graded: no repository, no tests, tests without a file.

    The content of images and local repositories is not checked.
    """
    if not task.checks.fail_to_pass:
        raise TaskError(f"task {task.id}: it names no test that the fix must make pass (`fail_to_pass`)")
    image = task.environment.image
    if image.startswith("repo:") and not task.environment.commit:
        raise TaskError(f"task {task.id}: its environment names no commit of {image.removeprefix('repo:')}")
    if image != "host":
        return
    files = {*tree(task), *task.checks.test_files}
    for test in (*task.checks.fail_to_pass, *task.checks.pass_to_pass):
        if test.split("::")[0] not in files:
            raise TaskError(
                f"task {task.id}: the file of test {test} is neither in `test_files` nor in the repository"
            )


def load_all(source: str | Path) -> list[Task]:
    """Return every task of a file or of a hub data set, in any known format.

    Raises TaskError when a row cannot be used or occurs twice: a run must not lose tasks unnoticed.
    """
    imported = tasks_of(read_source(str(source)), source)
    if imported.refused:
        raise TaskError(
            f"{source} holds rows that cannot be used: {imported.refusals()}. Leave them out with "
            f"`hone tasks import`, or correct them"
        )
    if imported.repeated:
        raise TaskError(
            f"{source} holds {imported.repeated} rows twice: leave them out with `hone tasks import`"
        )
    return list(imported.tasks)


def _complete(source: str | Path) -> list[Task]:
    tasks = load_all(source)
    for task in tasks:
        check_complete(task)
    return tasks


def _sets(path: Path) -> Splits:
    sets: dict[str, list[Task]] = {name: [] for name, _ in Splits().named()}
    for task in _complete(path):
        split = task.metadata.get("split", "train")
        if not isinstance(split, str) or split not in sets:
            raise TaskError(f"{path}: task {task.id} is of the set {split!r}; sets are {', '.join(sets)}")
        sets[split].append(task)
    return Splits(**{name: tuple(tasks) for name, tasks in sets.items()})


def _selected(splits: Splits, settings: SelectSettings) -> Splits:
    set_of = {id(task): name for name, tasks in splits.named() for task in tasks}
    chosen = select([task for _, tasks in splits.named() for task in tasks], settings)
    return Splits(
        **{name: tuple(task for task in chosen if set_of[id(task)] == name) for name, _ in splits.named()}
    )
