"""Division of tasks into sets, so that no near-duplicate is in two of them.

Tasks of one group stay together. Groups are as coarse as the sizes of the sets allow:

    family     tasks of one family of bugs (`metadata.family`), where every task has one
    file       tasks whose fixes change a common file
    function   tasks whose fixes change a common function, for projects of few files

Tasks that the same tests decide, and tasks of one commit of a history, are of one group at every level.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.tasks.bundles import with_bundles
from hone.tasks.errors import TaskError
from hone.tasks.formats import origin, save
from hone.tasks.places import changed_files
from hone.tasks.splits import Splits, check_disjoint, is_seeded
from hone.types import Task

_TOLERANCE = 0.5  # of the wanted size of the test set, before a finer level is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    splits: Splits
    level: str  # "family", "file" or "function"
    groups: int


def divide(tasks: Sequence[Task], *, test: float = 0.2, validation: float = 0.0, seed: int = 0) -> Division:
    """Return the tasks in a training, a test and a validation set; `metadata.split` names a task's set.

    The same tasks, shares and seed give the same sets. Within a set, tasks keep their order.

    Args:
        test: share of the tasks for the test set, above 0; it gets at least one group.
        validation: share for the validation set; 0: none.
    Raises:
        TaskError: the tasks cannot be divided without near-duplicates on both sides.
    """
    wanted = {"test": max(1, round(test * len(tasks))), "validation": round(validation * len(tasks))}
    with_families = bool(tasks) and all("family" in task.metadata for task in tasks)
    for level in (*(["family"] if with_families else []), "file", "function"):
        groups = _groups(tasks, level)
        sets = _fill(groups, wanted, random.Random(f"{seed} split"))
        short = abs(len(sets["test"]) - wanted["test"]) > max(1, _TOLERANCE * wanted["test"])
        if all(sets[name] for name in ("train", "test")) and (level == "function" or not short):
            splits = Splits(
                **{
                    name: tuple(_of_set(tasks[index], name) for index in sorted(chosen))
                    for name, chosen in sets.items()
                }
            )
            check_disjoint(splits)
            return Division(splits=splits, level=level, groups=len(groups))
    raise TaskError(
        f"the {len(tasks)} tasks cannot be divided into a training and a test set: their fixes change the "
        "same functions, or the same tests decide them. Make more tasks, or evaluate on another repository"
    )


def _of_set(task: Task, name: str) -> Task:
    return dataclasses.replace(task, metadata={**task.metadata, "split": name})


def _fill(
    groups: Sequence[Sequence[int]], wanted: dict[str, int], chance: random.Random
) -> dict[str, list[int]]:
    """Return set -> indices of tasks: a group goes to the first of `wanted` that has room, else to train."""
    sets: dict[str, list[int]] = {"train": [], **{name: [] for name in wanted}}
    for group in chance.sample(list(groups), len(groups)):
        fitting = (name for name, size in wanted.items() if len(sets[name]) + len(group) <= size)
        sets[next(fitting, "train")] += group
    if not sets["test"] and len(groups) > 1:  # every group is larger than the set
        smallest = min(groups, key=len)
        sets["train"] = [index for index in sets["train"] if index not in smallest]
        sets["test"] = list(smallest)
    return sets


def _groups(tasks: Sequence[Task], level: str) -> list[list[int]]:
    """Return the indices of the tasks that a chain of common keys connects."""
    group_of: dict[Hashable, int] = {}
    groups: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        keys = list(_keys(task, level))
        joined = {group_of[key] for key in keys if key in group_of}
        members = [member for group in sorted(joined) for member in groups.pop(group)] + [index]
        groups[index] = members
        group_of |= dict.fromkeys(keys, index)
        group_of |= {key: index for key, group in group_of.items() if group in joined}
    return list(groups.values())


def _keys(task: Task, level: str) -> Iterator[Hashable]:
    repo = task.environment.repo or task.environment.image
    yield "tests", repo, frozenset(task.checks.fail_to_pass)
    if not is_seeded(task) and (commit := origin(task.environment)) is not None:
        yield "commit", commit
    if level == "family":
        yield "family", task.metadata["family"]
        return
    functions = task.metadata.get("functions") or ()
    for path in changed_files(task.checks.gold_patch):
        if level == "file" or not functions:
            yield "file", repo, path
        else:
            yield from (("function", repo, path, name) for name in functions)


def write_sets(splits: Splits, folder: Path) -> dict[str, Path]:
    """Write each set with tasks to a file of its name in `folder`; return set -> file.

    A bundle of the tasks is copied to `folder`, so that the folder can be moved; see `hone.tasks.bundles`.
    """
    files: dict[str, Path] = {}
    for name, tasks in splits.named():
        if tasks:
            files[name] = folder / f"{name}.jsonl"
            save(with_bundles(tasks, folder), files[name])
    return files
