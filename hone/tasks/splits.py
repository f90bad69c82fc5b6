"""Task sets and the check that they are disjoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hone.tasks.errors import TaskError, first_few
from hone.tasks.formats import content_hash, origin
from hone.tasks.places import changed_files
from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The task sets of a run; `test_unseen` holds families that occur in no other set."""

    train: tuple[Task, ...] = ()
    validation: tuple[Task, ...] = ()
    test: tuple[Task, ...] = ()
    test_unseen: tuple[Task, ...] = ()

    def named(self) -> Iterator[tuple[str, tuple[Task, ...]]]:
        """Yield the name of each set (`metadata["split"]` of its tasks) and its tasks."""
        for name in ("train", "validation", "test", "test_unseen"):
            yield name, getattr(self, name)


def check_disjoint(splits: Splits) -> None:
    """Raise TaskError when the sets overlap.

    No id and no content (problem, environment and checks) may occur twice; no commit of a repository and no
    combination of names (`metadata["names"]`) may occur in two sets. Bugs seeded into one commit may, but not
    two of one function, nor two that the same tests detect; no family of `test_unseen`
    (`metadata["family"]`) may occur in another set.
    """
    clashes: list[str] = []
    first: dict[tuple[str, object], tuple[str, str]] = {}
    for split, tasks in splits.named():
        for task in tasks:
            keys = list(_keys(task))
            clash = _clash(split, task, keys, first)
            clashes += [clash] if clash else []
            for kind, key, _ in keys:
                first.setdefault((kind, key), (split, task.id))
    seen = {task.metadata.get("family") for task in (*splits.train, *splits.validation, *splits.test)}
    clashes += [
        f"{task.id} (test_unseen) is of the family {task.metadata['family']}, which other sets also have"
        for task in splits.test_unseen
        if task.metadata.get("family") in seen - {None}
    ]
    if clashes:
        raise TaskError(
            f"the task sets overlap: {first_few(clashes, separator='; ')}. Remove them from one set, or "
            f"set tasks.allow_overlap = true"
        )


def _clash(
    split: str,
    task: Task,
    keys: list[tuple[str, object, bool]],
    first: dict[tuple[str, object], tuple[str, str]],
) -> str | None:
    """Return the strongest reason why a task clashes with an earlier one, or None."""
    for kind, key, only_across in keys:
        earlier = first.get((kind, key))
        if earlier is not None and (earlier[0] != split or not only_across):
            return f"{task.id} ({split}) has the {kind} of {earlier[1]} ({earlier[0]})"
    return None


def _keys(task: Task) -> Iterator[tuple[str, object, bool]]:
    """Yield the keys that must be unique: kind, value, and whether the same set may repeat it."""
    yield "id", task.id, False
    yield "content", content_hash(task), False
    if is_seeded(task):
        repo = task.environment.repo or task.environment.image
        for path in changed_files(task.checks.gold_patch):
            yield from (("function", (repo, path, name), True) for name in task.metadata["functions"])
        yield "failing tests", (repo, frozenset(task.checks.fail_to_pass)), True
    elif (commit := origin(task.environment)) is not None:
        yield "repository and commit", commit, True
    if "names" in task.metadata:
        yield "names", tuple(task.metadata["names"]), True


def is_seeded(task: Task) -> bool:
    """Return whether a task's bug was seeded by `hone tasks mutate`, perhaps into the commit of others."""
    return task.source == "mutated" and "functions" in task.metadata
