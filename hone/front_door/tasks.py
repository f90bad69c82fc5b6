"""`hone.load_tasks`"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from hone.config import assign, resolve
from hone.tasks.sources import load_splits
from hone.types import Task

Split = Literal["train", "validation", "test", "test_unseen"]


def load_tasks(source: str | Path, *, split: Split | None = None, **settings: Any) -> list[Task]:
    """Return the tasks of a source.

    Args:
        source: a task file (JSONL or Parquet of Hone, SWE-bench and other known data sets), a directory of
            Harbor tasks, the name of a data set on the Hugging Face hub, or "curriculum" (generated).
        split: only the tasks of this set; default: of all sets.
        settings: of `[tasks]` in a recipe, such as `timeout_s=60`, `select={"limit": 10}`, or `train=20` and
            `curriculum="two_bugs"` of a curriculum.

    Raises:
        TaskError: the source cannot be read, a task cannot be graded, or the selection matches none.
        ConfigError: `settings` holds an unknown name or an invalid value.

    Example:
        tasks = hone.load_tasks("tasks.jsonl", select={"limit": 10})
        tasks = hone.load_tasks("curriculum", train=20, test=0, unseen=0)
    """
    given = [assign("load_tasks", f"tasks.{name}", value) for name, value in settings.items()]
    splits = load_splits(resolve(None, [assign("load_tasks", "tasks.source", str(source)), *given]).tasks)
    if split is not None:
        return list(getattr(splits, split))
    return [task for _, tasks in splits.named() for task in tasks]
