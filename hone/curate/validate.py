"""Admission: a task is admitted when its gold patch resolves it in every run and the empty patch in none.

The first run is as a grading; the others differ on purpose (`hone.grading.variation`), so that tests which
depend on more than the patch are found. An admitted task gets controls: see `hone.curate.controls`. Every
grading runs in a fresh sandbox; no cached verdict is used.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hone.curate.controls import find_controls
from hone.curate.flaky import CHANCE, describe, find_causes, unstable
from hone.curate.infrastructure import is_transient, raise_if_gone
from hone.curate.journal import Journal
from hone.curate.limits import run_limit_s
from hone.curate.record import Reason, Record, Report, count_controlled, with_findings, with_limit
from hone.grading.errors import GraderError
from hone.grading.grade import Grader
from hone.grading.plan import compile_plan
from hone.grading.variation import Variation, factors_of, variation_of
from hone.grading.verdict import EXCUSED
from hone.sandbox.contract import SandboxError
from hone.tasks.errors import TaskError, first_few
from hone.tasks.formats import content_hash
from hone.tasks.harbor import is_harbor
from hone.tasks.sources import check_complete
from hone.types import Control, Task, TestStatus, Verdict
from hone.utils.concurrency import task_group

ATTEMPTS = 3  # at a task whose sandboxes are lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The verdicts of n gradings of the gold patch and n of the empty patch."""

    task_id: str
    gold: tuple[Verdict, ...] = ()
    empty: tuple[Verdict, ...] = ()
    varied: tuple[str, ...] = ()  # what differed between the runs
    causes: Mapping[str, str] = field(default_factory=dict[str, str])  # of tests that change; else chance
    controls: tuple[Control, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    limit_s: float = 0.0  # of each run of the empty patch, from the time of the gold patch
    error: str | None = None  # why there are no verdicts: the task is invalid, or the grader failed

    @property
    def flaky(self) -> dict[str, str]:
        """Tests whose status differs between runs, with the cause."""
        return {test: self.causes.get(test, CHANCE) for test in (*unstable(self.gold), *unstable(self.empty))}

    @property
    def excused(self) -> tuple[str, ...]:
        """Tests that the gold patch leaves skipped or xfailed."""
        ended = {test for verdict in self.gold for test, status in verdict.tests.items() if status in EXCUSED}
        return tuple(sorted(ended))

    @property
    def reason(self) -> Reason | None:
        """Why the task is refused; None when it is admitted."""
        if self.error is not None:
            return Reason.NO_VERDICT
        n, gold, empty = len(self.gold), _resolved(self.gold), _resolved(self.empty)
        if gold == 0:
            return Reason.UNSOLVABLE
        if empty == n:
            return Reason.ALREADY_SOLVED
        return Reason.FLAKY if gold < n or empty or self.flaky else None

    @property
    def refusal(self) -> str | None:
        """Why the task is refused, in one sentence; None when it is admitted."""
        n, gold, empty = len(self.gold), _resolved(self.gold), _resolved(self.empty)
        match self.reason:
            case Reason.NO_VERDICT:
                return f"no verdict: {self.error}"
            case Reason.UNSOLVABLE:
                return f"unsolvable: the gold patch never passes {first_few(_failing(self.gold))}"
            case Reason.ALREADY_SOLVED:
                return "already solved: its tests pass without a patch"
            case Reason.FLAKY:
                how = [f"the gold patch passes {gold} of {n} times"] if gold < n else []
                how += [f"its tests pass without a patch {empty} of {n} times"] if empty else []
                how += [describe(self.flaky) or f"failing {first_few(_failing(self.gold))}"]
                return f"flaky: {'; '.join(how)}"
        return None

    def record(self, task: Task, *, elapsed_s: float) -> Record:
        """Return what is kept of the admission."""
        runs = (*self.gold, *self.empty)
        reached_limit = any(verdict.seconds >= self.limit_s for verdict in self.empty)
        return Record(
            task_id=self.task_id,
            content=content_hash(with_limit(task, self.limit_s) if reached_limit else task),
            reason=self.reason,
            detail=self.refusal,
            gold=tuple(verdict.resolved for verdict in self.gold),
            empty=tuple(verdict.resolved for verdict in self.empty),
            varied=self.varied,
            tests=len(self.gold[0].tests) if self.gold else 0,
            flaky=self.flaky,
            controlled=count_controlled(self.controls),
            controls=self.controls,
            excused=self.excused,
            seconds=max((verdict.seconds for verdict in runs), default=0.0),
            memory_mib=max((verdict.memory_mib for verdict in runs), default=0.0),
            elapsed_s=elapsed_s,
            finished_at=time.time(),
            limit_s=self.limit_s,
            reached_limit=reached_limit,
            versions=self.versions,
        )


async def validate(
    tasks: Iterable[Task],
    grader: Grader,
    journal: Journal,
    *,
    repeats: int = 3,
    controls: bool = True,
    versions: bool = False,
    progress: Callable[[Record], None] | None = None,
) -> Report:
    """Grade the gold patch and the empty patch of each task `repeats` times; keep each record in the journal.

    As many tasks at once as the `concurrency` of the grader's settings allows; only these are in memory.
    Tasks in the journal are not validated again. A task that is invalid or cannot be graded is refused with
    its error; the others continue. The limit of the empty patch's runs follows the time of the gold patch:
    see `hone.curate.limits`.

    Args:
        controls: whether to find controls for the admitted tasks, which replace those that they have.
        versions: whether to record the versions of what ran the tests.
        progress: called with each new record.
    Raises:
        GraderError: no sandbox can be started; the records so far are in the journal.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    ids: list[str] = []
    queue = iter(tasks)

    async def work() -> None:
        for task in queue:  # shared: each task goes to one worker
            ids.append(task.id)
            if task.id in journal:
                continue
            started = time.monotonic()
            admission = await _admit(task, grader, repeats, controls=controls, versions=versions)
            record = admission.record(task, elapsed_s=time.monotonic() - started)
            journal.put(task.id, record.to_json())
            if progress:
                progress(record)

    async with task_group() as group:
        for _ in range(grader.settings.concurrency):
            group.create_task(work())
    return Report(journal=journal, ids=tuple(ids))


async def _admit(given: Task, grader: Grader, repeats: int, *, controls: bool, versions: bool) -> Admission:
    """Return the admission of a task. Raises GraderError when no sandbox can be started."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _try(given, grader, repeats, controls=controls, versions=versions)
        except (TaskError, GraderError, SandboxError) as error:
            await raise_if_gone(error, grader.provider)
            if attempt == ATTEMPTS or not is_transient(error):
                return Admission(task_id=given.id, error=str(error))
        except Exception as error:  # a defect that one task brings out must not end the others
            await raise_if_gone(error, grader.provider)
            return Admission(task_id=given.id, error=f"the grader crashed: {_located(error)}")
    raise AssertionError("unreachable")


async def _try(given: Task, grader: Grader, repeats: int, *, controls: bool, versions: bool) -> Admission:
    task = with_findings(given, (), None)
    check_complete(task)
    gold_patch = await grader.reference_patch(task) if is_harbor(task) else task.checks.gold_patch
    if not gold_patch:
        raise TaskError(f"task {task.id}: it has no gold patch and no solution to validate it with")

    async def of_gold(variation: Variation) -> Verdict:
        return await grader.grade_trusted(task, gold_patch, variation)

    async def of_empty(variation: Variation) -> Verdict:
        return await grader.grade_trusted(limited, "", variation)

    gold = [await of_gold(variation_of(run)) for run in range(repeats)]
    limit_s = min(task.checks.timeout_s, run_limit_s(max(each.seconds for each in gold)))
    limited = with_limit(task, limit_s)  # a patch that hangs would take the whole time each time
    empty = [await of_empty(variation_of(run)) for run in range(repeats)]
    causes = await find_causes(of_gold, gold)
    causes |= await find_causes(of_empty, empty, known=causes)
    admission = Admission(
        task_id=task.id,
        gold=tuple(gold),
        empty=tuple(empty),
        limit_s=limit_s,
        varied=factors_of(compile_plan(task), repeats),
        causes=causes,
        versions=await grader.versions(task) if versions else {},
    )
    if controls and admission.reason is None and not is_harbor(task):
        found = await find_controls(task, grader, repeats=repeats)
        admission = dataclasses.replace(admission, controls=found)
    return admission


def _located(error: Exception) -> str:
    """Return an error with the place in the code that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"


def _resolved(verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.resolved for verdict in verdicts)


def _failing(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the tests that did not pass in some run, or the last log line where every test passed."""
    tests = {test for v in verdicts for test, status in v.tests.items() if status is not TestStatus.PASSED}
    logs = [v.log.strip().splitlines()[-1] for v in verdicts if not v.resolved and v.log.strip()]
    return sorted(tests) or logs[:1]
