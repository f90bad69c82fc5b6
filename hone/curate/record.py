"""What is kept of each admission, one JSON value per task, and the report over all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hone.curate.journal import Journal
from hone.tasks.errors import TaskError
from hone.tasks.sources import PROOF
from hone.types import Control, Task


class Reason(StrEnum):
    """Why a task is refused."""

    NO_REPOSITORY = "no_repository"
    NO_VERDICT = "no_verdict"  # the task is invalid, or the grader failed
    UNSOLVABLE = "unsolvable"
    ALREADY_SOLVED = "already_solved"
    FLAKY = "flaky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The admission of one task, without the logs of its runs."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    task_id: str
    content: str  # `content_hash` of the task
    reason: Reason | None = None  # None: the task is admitted
    detail: str | None = None  # the reason in one sentence
    gold: tuple[bool, ...] = ()  # whether each run with the gold patch was resolved
    empty: tuple[bool, ...] = ()  # the same with the empty patch
    varied: tuple[str, ...] = ()  # what differed between the runs; see `hone.grading.variation.FACTORS`
    tests: int = 0
    flaky: Mapping[str, str] = field(default_factory=dict[str, str])  # test -> cause
    controlled: int = 0  # tests with a control
    controls: tuple[Control, ...] = ()
    excused: tuple[str, ...] = ()  # tests that the gold patch leaves skipped or xfailed
    seconds: float = 0.0  # the longest test run
    limit_s: float = 0.0  # of each run of the empty patch, from the time of the gold patch
    reached_limit: bool = False  # whether it stopped one, and so belongs to the task
    memory_mib: float = 0.0  # the peak of one test process
    elapsed_s: float = 0.0  # from the first grading to the decision
    finished_at: float = 0.0  # Unix time, s
    versions: Mapping[str, str] = field(default_factory=dict[str, str])  # python, pytest, kernel

    @property
    def proof(self) -> dict[str, Any]:
        """What an admitted task keeps in its metadata."""
        return {
            "repeats": len(self.gold),
            "varied": list(self.varied),
            "controlled": self.controlled,
            "seconds": round(self.seconds, 3),
            "limit_s": self.limit_s,
            "memory_mib": round(self.memory_mib, 1),
        }

    def to_json(self) -> dict[str, Any]:
        return _adapter().dump_python(self, mode="json")


@cache
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def read_record(data: Any) -> Record:
    """Return the record that `to_json` wrote. Raises TaskError."""
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TaskError(f"an admission in the journal cannot be read: `{where}`: {first['msg']}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The records of the tasks in their order; each is read when it is needed."""

    journal: Journal
    ids: Sequence[str]

    def records(self) -> Iterator[Record]:
        """Yield the records of the tasks that are decided."""
        for task_id in self.ids:
            if (record := self.record(task_id)) is not None:
                yield record

    def record(self, task_id: str) -> Record | None:
        data = self.journal.get(task_id)
        return None if data is None else read_record(data)

    @property
    def admitted(self) -> tuple[str, ...]:
        return tuple(record.task_id for record in self.records() if record.reason is None)

    @property
    def refused(self) -> dict[str, str]:
        """The sentence by task id."""
        return {each.task_id: each.detail or "" for each in self.records() if each.reason is not None}

    @property
    def tests(self) -> int:
        """Number of tests of the admitted tasks."""
        return sum(record.tests for record in self.records() if record.reason is None)

    @property
    def controlled(self) -> int:
        """Number of those with a control."""
        return sum(record.controlled for record in self.records())


def with_proof(tasks: Iterable[Task], report: Report) -> Iterator[Task]:
    """Yield the admitted tasks with controls, `checks.excused` and `metadata.validation`, the proof.

    A task whose empty patch was stopped keeps the limit that stopped it: with more time it might pass.
    """
    for task in tasks:
        record = report.record(task.id)
        if record is not None and record.reason is None:
            limited = with_limit(task, record.limit_s) if record.reached_limit else task
            proven = with_findings(limited, record.controls, record.excused)
            yield dataclasses.replace(proven, metadata={**task.metadata, PROOF: record.proof})


def with_findings(task: Task, controls: tuple[Control, ...], excused: tuple[str, ...] | None) -> Task:
    checks = dataclasses.replace(task.checks, controls=controls, excused=excused)
    return dataclasses.replace(task, checks=checks)


def with_limit(task: Task, timeout_s: float) -> Task:
    return dataclasses.replace(task, checks=dataclasses.replace(task.checks, timeout_s=timeout_s))


def count_controlled(controls: Sequence[Control]) -> int:
    """Return the number of tests with a control."""
    return len({test for control in controls for test in control.tests})
