"""The tasks of a run, and their selection by repository, id, difficulty and length."""

from __future__ import annotations

import dataclasses
import difflib
import random
from collections.abc import Collection, Sequence
from pathlib import Path

from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError, first_few
from hone.tasks.files import read_source, tasks_of
from hone.tasks.formats.pytest_ids import test_names
from hone.tasks.harbor import is_harbor
from hone.tasks.published import INSTANCE_LISTS, instance_list
from hone.tasks.settings import SelectSettings, TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.tasks.workspace import tree
from hone.types import Task

CURRICULUM = "curriculum"
PROOF = "validation"  # metadata key: how the task was admitted
RATE = "rate"  # metadata key: how often a policy resolves the task; see `hone tasks rate`


def load_splits(settings: TasksSettings) -> Splits:
    """Return the task sets of `settings`: generated or read from files, then selected.

    A task of a file belongs to the set in its `metadata.split`, by default `train`; the tasks of an
    evaluation file are the test set, and those of a validation file the validation set.

    Raises TaskError when a file cannot be read, a task has no repository or no tests, the selection matches
    no task, or the sets overlap.
    """
    splits = generate(settings) if settings.source == CURRICULUM else _sets(Path(settings.source))
    if settings.select != SelectSettings():
        splits = _selected(splits, settings.select)
    if settings.validation_source is not None:
        splits = dataclasses.replace(splits, validation=tuple(_complete(settings.validation_source)))
    if settings.evaluation is not None:
        splits = dataclasses.replace(splits, test=tuple(_complete(settings.evaluation)))
    if settings.timeout_s is not None:
        limited = {name: limit_time(tasks, settings.timeout_s) for name, tasks in splits.named()}
        splits = Splits(**limited)
    if not settings.allow_overlap:
        check_disjoint(splits)
    return splits


def limit_time(tasks: Sequence[Task], timeout_s: float) -> tuple[Task, ...]:
    """Return the tasks with `timeout_s` as the time limit of their tests."""
    return tuple(
        dataclasses.replace(task, checks=dataclasses.replace(task.checks, timeout_s=timeout_s))
        for task in tasks
    )


def check_proven(settings: TasksSettings, tasks: Sequence[Task]) -> None:
    """Raise TaskError for tasks of a file without a proof of admission, unless `settings.unproven`.

    Tasks of the curriculum need none.
    """
    if settings.unproven:
        return
    unproven = [task.id for task in tasks if task.source != CURRICULUM and PROOF not in task.metadata]
    if unproven:
        source = settings.source
        raise TaskError(
            f"{source} has no proof of admission for these tasks: {first_few(unproven)}. Run "
            f"`hone tasks validate {source} -o admitted.jsonl` and train on it, or set tasks.unproven = true"
        )


def check_complete(task: Task) -> None:
    """Raise TaskError for a task that can never be graded.

    It has no repository or no tests, or the file of a test does not exist or is not Python.

    The content of images and local repositories is not checked.
    """
    if not task.checks.fail_to_pass:
        raise TaskError(
            f"task {task.id}: it names no test that the fix must make pass: set `fail_to_pass`, or leave the "
            "task out"
        )
    image = task.environment.image
    if image.startswith("repo:") and not task.environment.commit:
        raise TaskError(f"task {task.id}: its environment names no commit of {image.removeprefix('repo:')}")
    if image != "host" or is_harbor(task):
        return
    files = {**tree(task), **task.checks.test_files}
    for file in dict.fromkeys(test.split("::")[0] for test in task.checks.named_tests):
        if file not in files:
            raise TaskError(
                f"task {task.id}: the test file {file} is neither in `test_files` nor in the repository"
            )
        try:
            test_names(files[file])
        except TaskError as error:
            raise TaskError(f"task {task.id}: {file}: {error}") from None


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


_COLUMNS = ("difficulty", "gpt_difficulty")  # of SWE-bench Verified and of KodCode


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
    """Return the ids of an instance list: one per line, `#` starts a comment. Raises TaskError.

    The name of a published list, see `hone.tasks.published`, gives its ids, unless a file has that name.
    """
    if str(path) in INSTANCE_LISTS and not path.exists():
        return instance_list(str(path))
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(
            f"cannot read ids from {path}: {getattr(error, 'strerror', None) or error}. Published lists are "
            f"{', '.join(INSTANCE_LISTS)}"
        ) from None
    ids = [line.partition("#")[0].strip() for line in lines]
    if not any(ids):
        raise TaskError(f"{path} lists no ids")
    return list(dict.fromkeys(name for name in ids if name))


def _check(asked: Sequence[str], known: Collection[str], description: str) -> None:
    unknown: list[str] = []
    for name in (name for name in asked if name not in known):
        nearest = difflib.get_close_matches(name, known, n=1)
        unknown.append(f"{name} (did you mean {nearest[0]}?)" if nearest else name)
    if unknown:
        raise TaskError(f"there is no task {description} {first_few(unknown)}")
