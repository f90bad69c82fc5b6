"""Sets of tasks, and the proof that they share nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The task sets of a run; `test_unseen` holds families that occur in no other set."""

    train: tuple[Task, ...] = ()
    validation: tuple[Task, ...] = ()
    test: tuple[Task, ...] = ()
    test_unseen: tuple[Task, ...] = ()

    def named(self) -> Iterator[tuple[str, tuple[Task, ...]]]:
        """Each set with its name, which is what `metadata["split"]` of its tasks says."""
        for name in ("train", "validation", "test", "test_unseen"):
            yield name, getattr(self, name)


def check_disjoint(splits: Splits) -> None:
    """Prove that no task, by content, and no combination of names occurs in two sets, nor a task twice in one.

    Raises TaskError naming the offending ids.
    """
    owners: dict[object, tuple[str, str]] = {}
    clashes: list[str] = []
    for split, tasks in splits.named():
        for task in tasks:
            for kind, key in _keys(task):
                owner = owners.setdefault((kind, key), (split, task.id))
                twice = owner[1] != task.id or owner[0] != split
                if twice and (kind == "content" or owner[0] != split):
                    clashes.append(f"{owner[1]} ({owner[0]}) and {task.id} ({split}) have the same {kind}")
    if clashes:
        shown = "; ".join(clashes[:10]) + (f"; and {len(clashes) - 10} more" if len(clashes) > 10 else "")
        raise TaskError(f"the task sets overlap: {shown}")


def _keys(task: Task) -> Iterator[tuple[str, object]]:
    yield "content", content_hash(task)
    names: Sequence[str] | None = task.metadata.get("names")
    if names:
        yield "names", tuple(names)
