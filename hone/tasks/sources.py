"""Where a run's tasks come from."""

from __future__ import annotations

from pathlib import Path

from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.formats import load
from hone.tasks.settings import TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.tasks.workspace import tree
from hone.types import Task


def load_splits(settings: TasksSettings) -> Splits:
    """The task sets that `settings` name: generated, or read from a JSONL file.

    A task of a file belongs to the set that its `metadata.split` names, or to `train` without one.
    Raises TaskError when the file cannot be read, a task of it lacks its repository or its tests, or its sets
    overlap.
    """
    if settings.source == "curriculum":
        return generate(settings)
    sets: dict[str, list[Task]] = {name: [] for name, _ in Splits().named()}
    for task in load(Path(settings.source)):
        check_complete(task)
        split = task.metadata.get("split", "train")
        if split not in sets:
            raise TaskError(
                f"{settings.source}: task {task.id} is of the set {split!r}; sets are {', '.join(sets)}"
            )
        sets[split].append(task)
    splits = Splits(**{name: tuple(tasks) for name, tasks in sets.items()})
    check_disjoint(splits)
    return splits


def check_complete(task: Task) -> None:
    """Raises TaskError for a task that can never be graded: no repository, no tests, tests without a file."""
    files = {*tree(task), *task.checks.test_files}
    if not task.checks.fail_to_pass:
        raise TaskError(f"task {task.id}: it names no test that the fix must make pass (`fail_to_pass`)")
    for test in (*task.checks.fail_to_pass, *task.checks.pass_to_pass):
        if test.split("::")[0] not in files:
            raise TaskError(
                f"task {task.id}: the file of test {test} is neither in `test_files` nor in the repository"
            )
