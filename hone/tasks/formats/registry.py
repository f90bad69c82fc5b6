"""The formats by name, and their lossless round trip."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass

from hone.tasks.errors import TaskError
from hone.tasks.formats import debugging, harbor, kodcode, own, r2e, swebench
from hone.tasks.rows import Row, merge, record, text
from hone.types import Task

# How NeMo Gym names the data sets whose rows it carries, in lower case, and their formats.
_CARRIED = {
    "swe-gym/swe-gym": "swe-gym",
    "r2e-gym/r2e-gym-subset": "r2e-gym",
    "princeton-nlp/swe-bench_verified": "swe-bench",
    "swe-bench/swe-bench_verified": "swe-bench",
}
_SHARED = ("instance_id", "base_commit", "problem_statement")  # columns that are also beside the row there
_KEPT = ("row", "format")  # of a task's metadata
_OWN = ("hone", "harbor")  # formats whose rows are in the task itself


@dataclass(frozen=True, slots=True)
class Format:
    """A row format of tasks. Both functions raise TaskError for rows and tasks that they cannot convert."""

    name: str
    about: str
    to_task: Callable[[Row], Task]
    to_row: Callable[[Task], Row]

    def read(self, row: Row) -> Task:
        """Return the task of a row, with the row in its metadata. Raises TaskError."""
        task = self.to_task(row)
        if self.name in _OWN:
            return task
        return dataclasses.replace(task, metadata={**task.metadata, "row": row, "format": self.name})

    def write(self, task: Task) -> Row:
        """Return the original row of a task with later changes, or a new row. Raises TaskError."""
        row = task.metadata.get("row")
        if self.name in _OWN or task.metadata.get("format") != self.name or not isinstance(row, dict):
            return self.to_row(task)
        kept = {name: value for name, value in task.metadata.items() if name not in _KEPT}
        now = self.to_row(dataclasses.replace(task, metadata=kept))
        return merge(row, self.to_row(self.to_task(row)), now)


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
    if {"name", "folder"} <= columns:
        return "harbor"
    if {"text", "metadata"} <= columns:
        return "slime"
    if "responses_create_params" in columns:
        return "nemo-gym"
    if {"commit_hash", "expected_output_json"} <= columns:
        return "r2e-gym"
    if {"instance_id", "repo"} <= columns:
        return swebench.data_set(row)
    if {"question", "test"} <= columns or {"instruction", "test_code"} <= columns:
        return "kodcode"
    return "debugging" if columns & {"extra_info", "entry", "files"} else None


def _swebench(name: str, about: str) -> Format:
    return Format(name, about, lambda row: swebench.to_task(row, name), swebench.to_row)


def _prompt_to_task(row: Row) -> Task:
    """Return the task of a prompt as slime reads it.

    `metadata.instance` is the row of a data set, and `metadata.data_source` the name of the data set.
    """
    metadata = record(row, "metadata")
    named = text(metadata, "data_source", "swe-bench")
    task, instance = _read_instance(record(metadata, "instance"), named)
    kept = {**task.metadata, "data_source": named, "instance": instance}
    return dataclasses.replace(task, problem=text(row, "text", task.problem), metadata=kept)


def _request_to_task(row: Row) -> Task:
    """Return the task of a request to NeMo Gym's software-engineering agents, such as Nemotron's data.

    `responses_create_params.metadata` has the name of a data set in `dataset_name` and its row, as JSON, in
    `instance_dict`.
    """
    metadata = record(record(row, "responses_create_params"), "metadata")
    named = text(metadata, "dataset_name")
    if named.lower() not in _CARRIED:
        raise TaskError(
            f"its data set {named} brings a verdict script of its own, which Hone does not run; rows of "
            f"{', '.join(_CARRIED)} can be graded"
        )
    shared = {name: metadata[name] for name in _SHARED if metadata.get(name)}
    task = FORMATS[_CARRIED[named.lower()]].to_task({**shared, **record(metadata, "instance_dict")})
    return dataclasses.replace(task, metadata={**task.metadata, "dataset_name": named})


def _request_of_task(task: Task) -> Row:
    """Return a request that carries the row of a task."""
    known = {name: source for source, name in _CARRIED.items()}
    named = task.metadata.get("dataset_name", known.get(task.source))
    if not isinstance(named, str) or named.lower() not in _CARRIED:
        raise TaskError(f"task {task.id} is of {task.source}, whose rows NeMo Gym does not carry")
    instance = FORMATS[_CARRIED[named.lower()]].to_row(task)
    shared = {name: instance[name] for name in _SHARED if name in instance}
    metadata = {**shared, "dataset_name": named, "instance_dict": json.dumps(instance)}
    return {"responses_create_params": {"input": [], "metadata": metadata}}


def _read_instance(row: Row, source: str) -> tuple[Task, str]:
    """Return the task of a row in a prompt, and its format by the data set's name or the columns."""
    of_name = (name for name in FORMATS if name in source.lower() and name not in ("hone", "slime"))
    of_columns = _name_of(row)
    name = of_columns if of_columns == "nemo-gym" else next(of_name, None) or of_columns or "swe-bench"
    if name == "slime":
        raise TaskError("`metadata.instance` is itself a prompt")
    return FORMATS[name].to_task(row), name


def _prompt_of_task(task: Task) -> Row:
    """Return a prompt; its instance has the task's original format, by default SWE-bench's or Hone's own."""
    name = task.metadata.get("format")
    if name in (None, "slime"):
        name = task.metadata.get("instance")
    if name is None:
        in_image = task.environment.repo and task.environment.image.startswith("docker://")
        name = "swe-bench" if in_image else "hone"
    if not isinstance(name, str) or name not in FORMATS or name == "slime":
        raise TaskError(f"task {task.id} has the unknown format {name!r}")
    source = task.metadata.get("data_source", task.source)
    if not isinstance(source, str):
        raise TaskError(f"task {task.id}: `metadata.data_source` must be a text")
    return {
        "text": task.problem,
        "metadata": {"instance": FORMATS[name].write(task), "data_source": source},
    }


_ALL = (
    Format("hone", "Hone's own.", own.from_dict, own.to_dict),
    _swebench("swe-bench", "SWE-bench, Lite and Verified: rows of editions 4 and 5."),
    _swebench("swe-gym", "SWE-Gym and its subsets."),
    _swebench("swe-smith", "SWE-smith."),
    _swebench("swe-rebench", "SWE-rebench."),
    Format("r2e-gym", "R2E-Gym: an image, and each test's status after the fix.", r2e.to_task, r2e.to_row),
    Format("slime", "A prompt file: `text` and a data set's row.", _prompt_to_task, _prompt_of_task),
    Format(
        "nemo-gym",
        "A request of NeMo Gym: another data set's row inside.",
        _request_to_task,
        _request_of_task,
    ),
    Format("kodcode", "KodCode: a question, a solution and its tests.", kodcode.to_task, kodcode.to_row),
    Format("debugging", "Files with a bug, and tests beside them.", debugging.to_task, debugging.to_row),
    Format("harbor", "A Harbor task: a folder with task.toml.", harbor.to_task, harbor.to_row),
)
FORMATS = {format.name: format for format in _ALL}
