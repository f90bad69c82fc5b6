"""A prompt file as slime reads it: `{"text": ..., "metadata": {"instance": {...}, "data_source": ...}}`.

`metadata.instance` is the row of the data set; `metadata.data_source` is the name of the data set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hone.tasks.errors import TaskError
from hone.tasks.formats.rows import Row, record, text
from hone.types import Task


def to_task(row: Row, read: Callable[[Row, str], tuple[Task, str]]) -> Task:
    """Return the task of a prompt. Raises TaskError.

    Args:
        read: returns the task of an instance and its format, by the name of the data set.
    """
    metadata = record(row, "metadata")
    named = text(metadata, "data_source", "swe-bench")
    task, instance = read(record(metadata, "instance"), named)
    kept = {**task.metadata, "data_source": named, "instance": instance}
    return dataclasses.replace(task, problem=text(row, "text", task.problem), metadata=kept)


def to_row(task: Task, instance: Row) -> Row:
    """Return the prompt of a task with the row `instance`. Raises TaskError."""
    named = task.metadata.get("data_source", task.source)
    if not isinstance(named, str):
        raise TaskError(f"task {task.id}: `metadata.data_source` must be a text")
    return {"text": task.problem, "metadata": {"instance": instance, "data_source": named}}
