"""Tasks of a file as a taskset: an agent's trace holds their ids and statements, never their checks."""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import verifiers.v1 as vf

from hone.tasks.errors import TaskError
from hone.tasks.sources import load_all
from hone.types import Task


class HoneTask(vf.Task[vf.TaskData]):
    """One task, by its id; `HoneTaskset.tasks` has the whole."""

    @property
    def key(self) -> str:
        return self.data.id or self.hash


class HoneTasksetConfig(vf.TasksetConfig):
    tasks: str = ""
    """File of tasks, in any format that Hone reads."""


class HoneTaskset(vf.Taskset[HoneTask, HoneTasksetConfig]):
    """Raises TaskError for a file that cannot be used."""

    @functools.cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks by id."""
        if not self.config.tasks:
            raise TaskError("no tasks are given: pass --env.taskset.tasks FILE")
        return {task.id: task for task in load_all(self.config.tasks)}

    def load(self) -> Iterator[HoneTask]:
        for task in self.tasks.values():
            yield HoneTask(vf.TaskData(id=task.id, name=task.id, prompt=task.problem), self.config.task)
