"""The formats by name, and their lossless round trip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from hone.tasks.errors import TaskError
from hone.tasks.formats import debugging, kodcode, own, r2e, slime, swebench
from hone.tasks.formats.rows import Row, merge
from hone.types import Task

_KEPT = ("row", "format")  # of a task's metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A row format of tasks. Both functions raise TaskError for rows and tasks that they cannot convert."""

    name: str
    about: str
    to_task: Callable[[Row], Task]
    to_row: Callable[[Task], Row]

    def read(self, row: Row) -> Task:
        """Return the task of a row, with the row in its metadata. Raises TaskError."""
        task = self.to_task(row)
        if self.name == "hone":
            return task
        return dataclasses.replace(task, metadata={**task.metadata, "row": row, "format": self.name})

    def write(self, task: Task) -> Row:
        """Return the original row of a task with later changes, or a new row. Raises TaskError."""
        row = task.metadata.get("row")
        if self.name == "hone" or task.metadata.get("format") != self.name or not isinstance(row, dict):
            return self.to_row(task)
        return merge(row, self.to_row(self.to_task(row)), self.to_row(_bare(task)))


def detect(row: Row) -> Format:
    """Return the format of a row by its columns. Raises TaskError when no format matches."""
    name = _name_of(row)
    if name is None:
        raise TaskError(f"its columns match no known data set: {', '.join(FORMATS)}")
    return FORMATS[name]


def _name_of(row: Row) -> str | None:
    columns = row.keys()
    if {"environment", "checks"} <= columns:
        return "hone"
    if {"text", "metadata"} <= columns:
        return "slime"
    if {"commit_hash", "expected_output_json"} <= columns:
        return "r2e-gym"
    if {"instance_id", "repo"} <= columns:
        return swebench.data_set(row)
    if {"question", "test"} <= columns or {"instruction", "test_code"} <= columns:
        return "kodcode"
    return "debugging" if columns & {"extra_info", "entry", "files"} else None


def _bare(task: Task) -> Task:
    kept = {name: value for name, value in task.metadata.items() if name not in _KEPT}
    return dataclasses.replace(task, metadata=kept)


def _swebench(name: str, about: str) -> Format:
    return Format(
        name=name,
        about=about,
        to_task=lambda row: swebench.to_task(row, name),
        to_row=swebench.to_row,
    )


def _read_instance(row: Row, source: str) -> tuple[Task, str]:
    """Return the task of a row in a prompt, and its format by the data set's name or the columns."""
    of_name = (name for name in FORMATS if name in source.lower() and name not in ("hone", "slime"))
    name = next(of_name, None) or _name_of(row) or "swe-bench"
    if name == "slime":
        raise TaskError("`metadata.instance` is itself a prompt")
    return FORMATS[name].to_task(row), name


def _slime_row(task: Task) -> Row:
    """Return a prompt; its instance has the task's original format, by default SWE-bench's or Hone's own."""
    name = task.metadata.get("format")
    if name in (None, "slime"):
        name = task.metadata.get("instance")
    if name is None:
        in_image = task.environment.repo and task.environment.image.startswith("docker://")
        name = "swe-bench" if in_image else "hone"
    if not isinstance(name, str) or name not in FORMATS or name == "slime":
        raise TaskError(f"task {task.id} has the unknown format {name!r}")
    return slime.to_row(task, FORMATS[name].write(task))


FORMATS = {
    format.name: format
    for format in (
        Format(name="hone", about="Hone's own.", to_task=own.from_dict, to_row=own.to_dict),
        _swebench("swe-bench", "SWE-bench, Lite and Verified: rows of editions 4 and 5."),
        _swebench("swe-gym", "SWE-Gym and its subsets."),
        _swebench("swe-smith", "SWE-smith."),
        _swebench("swe-rebench", "SWE-rebench."),
        Format(
            name="r2e-gym",
            about="R2E-Gym and its subsets: an image and the status of each test after the fix.",
            to_task=r2e.to_task,
            to_row=r2e.to_row,
        ),
        Format(
            name="slime",
            about="A prompt file: `text`, and a row of another data set below `metadata`.",
            to_task=lambda row: slime.to_task(row, _read_instance),
            to_row=_slime_row,
        ),
        Format(
            name="kodcode",
            about="KodCode: a question, a solution and its tests.",
            to_task=kodcode.to_task,
            to_row=kodcode.to_row,
        ),
        Format(
            name="debugging",
            about="Debugging tasks: files with a bug, and the tests beside them.",
            to_task=debugging.to_task,
            to_row=debugging.to_row,
        ),
    )
}
