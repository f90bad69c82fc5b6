"""Choose the tasks of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from hone.evaluate.errors import EvaluateError
from hone.evaluate.settings import EvaluateSettings, parse_slice
from hone.tasks.settings import SelectSettings
from hone.tasks.sources import select
from hone.types import Task


def choose(tasks: Sequence[Task], settings: EvaluateSettings) -> list[Task]:
    """Return the tasks that `ids_file` lists, then the `slice` of these, in their order.

    Raises TaskError for an unknown id, EvaluateError when no task is left.
    """
    if not tasks:
        raise EvaluateError(f"the set {settings.split} holds no task: choose another set or other tasks")
    listed = tasks
    if settings.ids_file is not None:
        listed = select(tasks, SelectSettings(ids_file=settings.ids_file))
    chosen = list(listed[parse_slice(settings.slice)])
    if not chosen:
        raise EvaluateError(
            f"the slice {settings.slice} holds none of the {len(listed)} tasks: choose another"
        )
    return chosen
