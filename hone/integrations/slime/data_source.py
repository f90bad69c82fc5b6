"""slime's data source: the tasks of a recipe in Hone's order, with a queue of groups to be sampled again.

--data-source-path hone.integrations.slime.data_source.DataSource
"""

# slime is a checkout, and not installed where Hone is developed
# pyright: reportMissingImports=false
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.config import ConfigError, resolve
from hone.grading.assess import check_gradeable
from hone.integrations.slime.samples import KEY, Nested, flatten, reset
from hone.rollout.order import TaskOrder
from hone.tasks.sources import check_proven, load_splits
from hone.utils.files import write_file


class DataSource:
    """Group g has the task at position g of the order; its samples have the indices g * n and on.

    Which tasks come next is a function of one number and the queue, so both are the whole state.
    """

    def __init__(self, args: Any, sample_type: Any = None) -> None:
        """`sample_type`: default slime's own."""
        if sample_type is None:
            from slime.utils.types import Sample as sample_type
        settings = resolve(Path(args.hone_recipe))
        tasks = load_splits(settings.tasks).train
        check_gradeable(tasks)
        check_proven(settings.tasks, tasks)
        if not tasks:
            raise ConfigError("the training set is empty: set tasks.train, or a tasks.source with tasks")
        self._args = args
        self._sample_type = sample_type
        self._order = TaskOrder(tasks, seed=settings.seed, groups_per_step=settings.groups_per_step)
        self._tasks = {task.id: task for task in tasks}
        self._position = 0
        self._queue: list[list[Any]] = []

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._tasks)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return groups of pending samples: first those that were given back, then new ones."""
        groups, self._queue = self._queue[:num_samples], self._queue[num_samples:]
        while len(groups) < num_samples:
            groups.append(self._new_group(self._position))
            self._position += 1
        return groups

    def add_samples(self, samples: list[Nested]) -> None:
        """Take groups back; each rollout of them starts again from the beginning."""
        for group in samples:
            members = {sample.index: reset(sample) for sample in flatten(group)}
            if members:
                self._queue.append([members[index] for index in sorted(members)])

    def save(self, rollout_id: int) -> None:
        """Write the state beside slime's checkpoint."""
        path = _state_file(self._args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        queue = [[sample.index for sample in group] for group in self._queue]
        write_file(path, json.dumps({"position": self._position, "queue": queue}) + "\n")

    def load(self, rollout_id: int | None = None) -> None:
        """Continue with the state of a checkpoint, if there is one."""
        if self._args.load is None or rollout_id is None:
            return
        path = _state_file(self._args.load, rollout_id)
        if not path.exists():
            return
        try:
            state = json.loads(path.read_text())
            self._position = int(state["position"])
            self._queue = [self._samples(indices) for indices in state["queue"]]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{path} is not a state of this data source ({error}): remove it to start with the first task"
            ) from error

    def _new_group(self, position: int) -> list[Any]:
        size = self._args.n_samples_per_prompt
        return self._samples(range(position * size, (position + 1) * size))

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        """Return pending samples of one group."""
        position = indices[0] // self._args.n_samples_per_prompt
        task = self._order.task(position)
        return [
            self._sample_type(
                group_index=position,
                index=index,
                prompt=task.problem,
                label=task.id,
                metadata={KEY: {"task_id": task.id}},
            )
            for index in indices
        ]


def _state_file(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"hone_data_source_{rollout_id}.json"
