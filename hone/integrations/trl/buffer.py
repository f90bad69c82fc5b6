"""The queue from which TRL takes rows, which tells when the last row of a group was taken."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from typing import Any


class RowBuffer(queue.Queue[Any]):
    """A queue of rows with a `group_id`.

    `on_group(group_id)` is called, in the thread that takes it, for the last row of each group.
    """

    def __init__(self, on_group: Callable[[int], None]) -> None:
        super().__init__()
        self._on_group = on_group
        self._left: Counter[int] = Counter()  # group id -> rows in the queue

    def put_group(self, rows: list[Any]) -> None:
        """Add all rows of a group; at least one."""
        with self.mutex:
            for row in rows:
                self._left[row.group_id] += 1
                self._put(row)
            self.unfinished_tasks += len(rows)
            self.not_empty.notify(len(rows))

    def _get(self) -> Any:
        row = super()._get()
        self._left[row.group_id] -= 1
        if not self._left[row.group_id]:
            del self._left[row.group_id]
            self._on_group(row.group_id)
        return row
