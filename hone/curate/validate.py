"""Admission: a task is admitted when its gold patch resolves it in every run and the empty patch in none.

An admitted task gets controls: see `hone.curate.controls`. Every grading runs in a fresh sandbox; no cached
verdict is used.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.curate.controls import find_controls
from hone.curate.limits import run_limit_s
from hone.grading.errors import GraderError
from hone.grading.grade import Grader
from hone.grading.verdict import EXCUSED
from hone.tasks.errors import TaskError, first_few
from hone.tasks.sources import PROOF, check_complete
from hone.types import Control, Task, TestStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The verdicts of n gradings of the gold patch and n of the empty patch."""

    task_id: str
    gold: tuple[Verdict, ...] = ()
    empty: tuple[Verdict, ...] = ()
    controls: tuple[Control, ...] = ()
    limit_s: float = 0.0  # of each run of the empty patch, from the time of the gold patch
    error: str | None = None  # why there are no verdicts: the task is invalid, or the grader failed

    @property
    def flaky(self) -> tuple[str, ...]:
        """Tests whose status differs between runs."""
        return tuple(sorted({*_unstable(self.gold), *_unstable(self.empty)}))

    @property
    def seconds(self) -> float:
        """The longest test run."""
        return max((verdict.seconds for verdict in (*self.gold, *self.empty)), default=0.0)

    @property
    def memory_mib(self) -> float:
        """The peak memory of one test process."""
        return max((verdict.memory_mib for verdict in (*self.gold, *self.empty)), default=0.0)

    @property
    def controlled(self) -> int:
        """Number of tests with a control."""
        return count_controlled(self.controls)

    @property
    def excused(self) -> tuple[str, ...]:
        """Tests that the gold patch leaves skipped or xfailed."""
        ended = {test for verdict in self.gold for test, status in verdict.tests.items() if status in EXCUSED}
        return tuple(sorted(ended))

    @property
    def reached_limit(self) -> bool:
        """Whether the empty patch was stopped at the limit, which then belongs to the task."""
        return any(verdict.seconds >= self.limit_s for verdict in self.empty)

    @property
    def proof(self) -> dict[str, float]:
        """What an admitted task keeps in its metadata."""
        return {
            "repeats": len(self.gold),
            "controlled": self.controlled,
            "seconds": round(self.seconds, 3),
            "limit_s": self.limit_s,
            "memory_mib": round(self.memory_mib, 1),
        }

    @property
    def refusal(self) -> str | None:
        """Why the task is refused, in one sentence; None when it is admitted."""
        if self.error is not None:
            return f"no verdict: {self.error}"
        n, gold, empty = len(self.gold), _resolved(self.gold), _resolved(self.empty)
        if gold == 0:
            return f"unsolvable: the gold patch never passes {first_few(_failing(self.gold))}"
        if empty == n:
            return "already solved: its tests pass without a patch"
        if gold < n:
            return (
                f"flaky: the gold patch passes {gold} of {n} times, failing {first_few(_failing(self.gold))}"
            )
        if empty:
            return f"flaky: its tests pass without a patch {empty} of {n} times"
        return f"flaky: {first_few(self.flaky)} changes from run to run" if self.flaky else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One admission per task, in the order of the tasks."""

    admissions: tuple[Admission, ...]

    @property
    def admitted(self) -> tuple[str, ...]:
        return tuple(a.task_id for a in self.admissions if a.refusal is None)

    @property
    def tests(self) -> int:
        """Number of tests of the admitted tasks."""
        return sum(len(a.gold[0].tests) for a in self.admissions if a.refusal is None)

    @property
    def controlled(self) -> int:
        """Number of those with a control."""
        return sum(a.controlled for a in self.admissions)

    @property
    def refused(self) -> dict[str, str]:
        """The reason by task id."""
        return {a.task_id: a.refusal for a in self.admissions if a.refusal is not None}


def with_proof(tasks: Sequence[Task], report: Report) -> list[Task]:
    """Return the admitted tasks with controls, `checks.excused` and `metadata.validation`, the proof.

    A task whose empty patch was stopped keeps the limit that stopped it: with more time it might pass.
    """
    admitted = {each.task_id: each for each in report.admissions if each.refusal is None}
    return [
        dataclasses.replace(
            with_findings(
                with_limit(task, admitted[task.id].limit_s) if admitted[task.id].reached_limit else task,
                admitted[task.id].controls,
                admitted[task.id].excused,
            ),
            metadata={**task.metadata, PROOF: admitted[task.id].proof},
        )
        for task in tasks
        if task.id in admitted
    ]


def with_findings(task: Task, controls: tuple[Control, ...], excused: tuple[str, ...] | None) -> Task:
    checks = dataclasses.replace(task.checks, controls=controls, excused=excused)
    return dataclasses.replace(task, checks=checks)


def with_limit(task: Task, timeout_s: float) -> Task:
    return dataclasses.replace(task, checks=dataclasses.replace(task.checks, timeout_s=timeout_s))


def count_controlled(controls: Sequence[Control]) -> int:
    """Return the number of tests with a control."""
    return len({test for control in controls for test in control.tests})


async def validate(
    tasks: Sequence[Task],
    grader: Grader,
    *,
    repeats: int = 3,
    controls: bool = True,
    progress: Callable[[Admission], None] | None = None,
) -> Report:
    """Grade the gold patch and the empty patch of each task `repeats` times.

    As many run at once as the `concurrency` of the grader's settings allows. The limit of the empty patch's
    runs follows the time of the gold patch: see `hone.curate.limits`.

    A task that is invalid or cannot be graded is refused with its error; the others continue.

    Args:
        controls: whether to find controls for the admitted tasks, which replace those that they have.
        progress: called with each admission.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    slots = asyncio.Semaphore(grader.settings.concurrency)

    async def verdict(task: Task, patch: str) -> Verdict:
        async with slots:
            return await grader.grade_uncached(task, patch)

    async def admit(given: Task) -> Admission:
        task = with_findings(given, (), None)
        try:
            check_complete(task)
            if not task.checks.gold_patch:
                raise TaskError(f"task {task.id}: its data set has no gold patch to validate it with")
            # one after the other: the gradings of other tasks fill the slots
            gold = [await verdict(task, task.checks.gold_patch) for _ in range(repeats)]
            limit_s = min(task.checks.timeout_s, run_limit_s(max(each.seconds for each in gold)))
            limited = with_limit(task, limit_s)  # a patch that hangs would take the whole time each time
            empty = [await verdict(limited, "") for _ in range(repeats)]
            admission = Admission(task_id=task.id, gold=tuple(gold), empty=tuple(empty), limit_s=limit_s)
            if controls and admission.refusal is None:
                async with slots:
                    found = await find_controls(task, grader, repeats=repeats)
                admission = dataclasses.replace(admission, controls=found)
        except (TaskError, GraderError) as error:
            admission = Admission(task_id=task.id, error=str(error))
        if progress:
            progress(admission)
        return admission

    async with asyncio.TaskGroup() as group:
        admissions = [group.create_task(admit(task)) for task in tasks]
    return Report(admissions=tuple(admission.result() for admission in admissions))


def _resolved(verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.resolved for verdict in verdicts)


def _failing(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the tests that did not pass in some run, or the last log line where every test passed."""
    tests = {test for v in verdicts for test, status in v.tests.items() if status is not TestStatus.PASSED}
    logs = [v.log.strip().splitlines()[-1] for v in verdicts if not v.resolved and v.log.strip()]
    return sorted(tests) or logs[:1]


def _unstable(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    return [test for test in verdicts[0].tests if len({verdict.tests[test] for verdict in verdicts}) > 1]
