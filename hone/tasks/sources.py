"""Where a run's tasks come from."""

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
PROOF = "validation"  # of a task's metadata: how it was admitted
_SHOWN = 5  # tasks named in an error


def load_splits(settings: TasksSettings) -> Splits:
    """The task sets that `settings` name: generated, or read from files, and of these the selected ones.

    A task of a file belongs to the set that its `metadata.split` names, or to `train` without one; the tasks
    of an evaluation file are the test set.

    Raises TaskError when a file cannot be read, a task of it lacks its repository or its tests, the selection
    names what is not there, or the sets overlap.
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
    """A task that was never seen to be solvable, and failing before, teaches nothing that can be trusted.

    Raises TaskError naming those whose proof is missing; tasks of the curriculum are right by construction.
    """
    if settings.unproven:
        return
    unproven = [task.id for task in tasks if task.source != CURRICULUM and PROOF not in task.metadata]
    if unproven:
        more = f" and {len(unproven) - _SHOWN} more" if len(unproven) > _SHOWN else ""
        named, source = ", ".join(unproven[:_SHOWN]) + more, settings.source
        raise TaskError(
            f"{source} holds no proof that these tasks can be trusted: {named}. Run `hone tasks validate "
            f"{source} -o admitted.jsonl` and train on that, or set tasks.unproven = true"
        )


def check_complete(task: Task) -> None:
    """Raises TaskError for a task that can never be graded: no repository, no tests, tests without a file.

    What an image or a local repository holds is not looked at here.
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
