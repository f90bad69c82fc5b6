"""Mutation: a repository in, proven tasks and reasons out; batch by batch, deterministic for a seed."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from hone.curate.journal import Journal
from hone.curate.mutation.baseline import MAX_FILES, Baseline, measure_baseline
from hone.curate.mutation.candidates import Candidate
from hone.curate.mutation.project import Project, find_environment, read_project
from hone.curate.mutation.schedule import Schedule
from hone.curate.record import count_controlled, with_findings
from hone.curate.runner import REWRITE, Runner, trial_task
from hone.curate.statements import Failure, changed_lines, find_leak, parse_failures, write_statement
from hone.grading.errors import GraderError
from hone.grading.run import TestRun
from hone.tasks.repository import Repository
from hone.types import Checks, Commit, Control, Environment, Task, TestStatus

Progress = Callable[[str, Sequence[Task]], None]  # gets a message, and the tasks admitted so far
_BATCH = 24  # candidates per batch; the choice of a batch uses the results of the earlier ones
_MIN_TIMEOUT_S = 10.0  # of a candidate's run
_SLOWER = 6.0  # factor against the unchanged repository
SOURCE = "mutated"
_MIN_TASK_TIMEOUT_S = 30.0
_TASK_SLOWER = 10.0  # factor for a busy machine or a slow wrong fix
_MESSAGE = "Current state"  # of the only commit that the agent sees
_FAILED = (TestStatus.FAILED, TestStatus.ERROR)
_FEW = 3  # this many tests may fail, whatever their share of the run


class Reason(StrEnum):
    """Reasons why a candidate does not become a task."""

    REPEATED = "equal to another bug, or does not compile"
    UNDETECTED = "no test fails"
    DID_NOT_END = "the tests do not finish, or end their process"
    NOT_COLLECTED = "tests can no longer be collected"
    TOO_BROKEN = "more than half of the tests fail"
    PARTLY_HIDDEN = "one of its changes hides another"
    ALIKE = "too similar to another task"
    NO_STATEMENT = "no failing test makes an example"
    LEAKS = "its statement would reveal the fix"
    NOT_ADMITTED = "validation refuses the task"
    SURPLUS = "more tasks than requested"
    NO_VERDICT = "its tests could not be run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationReport:
    """The outcome of all candidates; each is counted once."""

    tasks: tuple[Task, ...]
    modules: int  # files that were mutated
    tests: int  # that always pass on the unchanged repository
    excluded_tests: Mapping[str, str]  # test or test file -> why it is not used
    excluded_files: Mapping[str, str]  # Python file -> why it was not mutated
    offered: int  # possible mutations
    unreached: int  # of those, in code that no test reaches
    candidates: int  # considered, combinations included
    ran: int  # whose tests were run
    rejected: Mapping[Reason, int]  # candidates without a task, by reason
    operators: Mapping[str, tuple[int, int]]  # name -> (candidates run, tasks)
    kinds: Mapping[str, int]  # single, compound, cross-file -> tasks
    refused: Mapping[str, str]  # id of a task that validation refused -> reason


async def mutate(
    repository: Path,
    runner: Runner,
    *,
    count: int,
    seed: int = 0,
    commit: str = "HEAD",
    tests: Sequence[str] | None = None,
    repeats: int = 3,
    journal: Path | None = None,
    progress: Progress = lambda message, tasks: None,
) -> MutationReport:
    """Seed bugs into a commit until `count` tasks are admitted, or no candidate is left.

    The same arguments give the same tasks. Runs whose results are in the journal are not repeated.

    Args:
        tests: directories, files or patterns of the tests to use; None: all that pytest would collect.
        repeats: gradings of each gold patch, and of each empty patch, for admission.
        journal: file that keeps the results of test runs; None: they are not kept.
        progress: called after each step.
    Raises:
        TaskError: the repository, its tests or the journal cannot be used.
        GraderError: no sandbox starts.
    """
    source = await asyncio.to_thread(Repository.open, repository)
    base = await asyncio.to_thread(source.commit, commit)
    run = {"image": str(source.path.absolute()), "commit": base, "seed": seed, "repeats": repeats}
    run["tests"] = sorted(tests) if tests else None
    known = Journal(journal, run)

    progress("resolving the requirements", ())
    environment = await find_environment(source, base, known)
    project = await asyncio.to_thread(read_project, source, base, environment.paths, run["tests"])
    progress(f"running {len(project.tests)} test files of the unchanged repository", ())
    baseline = await measure_baseline(project, environment, runner, known)
    search = Search(project, environment, baseline, runner, known, seed, repeats, progress)
    return await search.run(count)


class Search:
    """The candidates of one run. The next batch depends only on complete earlier batches."""

    def __init__(
        self,
        project: Project,
        environment: Environment,
        baseline: Baseline,
        runner: Runner,
        journal: Journal,
        seed: int,
        repeats: int,
        progress: Progress,
    ) -> None:
        self._project, self._environment, self._baseline = project, environment, baseline
        self._runner, self._journal, self._repeats, self._progress = runner, journal, repeats, progress
        self._tasks: list[Task] = []  # admitted, in the order of the candidates
        self._candidates = self._runs = 0
        self._ran: Counter[str] = Counter()  # operator -> candidates that were run
        self._rejected: Counter[Reason] = Counter()
        self._refused: dict[str, str] = {}  # id of a task that validation refused -> reason
        mutations = [m for _, module in sorted(project.modules.items()) for m in module.mutations()]
        reached = [m for m in mutations if baseline.files_reaching(m.path, m.block)]
        self._offered, self._unreached = len(mutations), len(mutations) - len(reached)
        self._bugs: set[tuple[object, ...]] = set()  # operators, functions and failing tests of the tasks
        self._schedule = Schedule(project.modules, reached, random.Random(f"{seed}"))

    async def run(self, count: int) -> MutationReport:
        """Search until `count` tasks are admitted or no candidate is left. Raises GraderError."""
        while len(self._tasks) < count and await self._step():
            continue
        tasks = self._tasks[:count]
        admitted = Counter(name for task in tasks for name in task.metadata["operators"])
        self._rejected[Reason.REPEATED] = self._schedule.repeated
        self._rejected[Reason.SURPLUS] = len(self._tasks) - len(tasks)
        return MutationReport(
            tasks=tuple(tasks),
            modules=len(self._project.modules),
            tests=sum(map(len, self._baseline.passing.values())),
            excluded_tests=self._baseline.excluded_tests,
            excluded_files=self._project.excluded_files,
            offered=self._offered,
            unreached=self._unreached,
            candidates=self._candidates + self._schedule.repeated,
            ran=self._runs,
            rejected={reason: number for reason, number in self._rejected.most_common() if number},
            operators={name: (ran, admitted[name]) for name, ran in sorted(self._ran.items())},
            kinds=Counter(task.metadata["kind"] for task in tasks),
            refused=self._refused,
        )

    async def _step(self) -> bool:
        """Run a batch and validate its tasks. Return False when no candidate is left.

        Raises GraderError when no candidate of the batch could be run.
        """
        batch = await asyncio.to_thread(self._schedule.batch, _BATCH)
        self._candidates += len(batch)
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._try(candidate)) for candidate in batch]
        results = [run.result() for run in runs]
        if results and all(result.get("refused") == Reason.NO_VERDICT.name for result in results):
            raise GraderError(f"no test run finished: {results[0]['detail']}")
        judged = [self._judge(candidate, result) for candidate, result in zip(batch, results, strict=True)]
        await self._prove([task for task in judged if task is not None])
        return bool(batch)

    def _files(self, candidate: Candidate) -> list[str]:
        """Return the test files to run: for each mutation the most specific ones that reach it."""
        files = [
            file
            for m in candidate.mutations
            for file in self._baseline.files_reaching(m.path, m.block)[:MAX_FILES]
        ]
        return sorted(set(files))

    async def _try(self, candidate: Candidate) -> dict[str, Any]:
        """Return the result of a candidate's test run as the journal keeps it."""
        key = f"run {candidate.key}"
        known = self._journal.get(key)
        if known is not None:
            return known
        files = self._files(candidate)
        timeout_s = max(_MIN_TIMEOUT_S, _SLOWER * sum(self._baseline.seconds[file] for file in files))
        try:
            trial = trial_task(self._environment, candidate.after, timeout_s=timeout_s, command=REWRITE)
            run = await self._runner.run(trial, files)
        except GraderError as error:
            # not in the journal: a later run may succeed
            return {"refused": Reason.NO_VERDICT.name, "detail": str(error)}
        if not run.finished and not run.seconds:
            return {"refused": Reason.NO_VERDICT.name, "detail": run.log}
        result = self._read(candidate, files, run)
        self._journal.put(key, result)
        self._progress("seeding bugs", self._tasks)
        return result

    def _read(self, candidate: Candidate, files: Sequence[str], run: TestRun) -> dict[str, Any]:
        expected = [test for file in files for test in self._baseline.passing[file]]
        refused, failing = classify_run(expected, run)
        if refused is not None:
            return {"refused": refused.name}
        found = parse_failures(run.log, failing)
        groups = [found]
        if len(candidate.mutations) > 1:
            detected = self._schedule.tests_of(candidate)
            if not all(tests & set(failing) for tests in detected):
                return {"refused": Reason.PARTLY_HIDDEN.name, "failing": failing}
            groups = _by_mutation(found, detected)
        sources = {file: self._project.tests[file] for file in files}
        statement = write_statement(groups, sources, self._project.modules)
        return {"files": list(files), "failing": failing, "statement": statement}

    def _judge(self, candidate: Candidate, result: Mapping[str, Any]) -> Task | None:
        self._runs += 1
        self._ran.update(candidate.operators)
        failing = result.get("failing", [])
        if failing and candidate.kind == "single" and "refused" not in result:
            self._schedule.add_detected(candidate.mutations[0], failing)
        reason = self._refusal(candidate, result)
        if reason is not None:
            self._rejected[reason] += 1
            return None
        return self._task(candidate, result["statement"], result["files"], failing)

    def _refusal(self, candidate: Candidate, result: Mapping[str, Any]) -> Reason | None:
        if "refused" in result:
            return Reason[result["refused"]]
        if result["statement"] is None:
            return Reason.NO_STATEMENT
        if find_leak(result["statement"], changed_lines(candidate.gold_patch, "+-")):
            return Reason.LEAKS
        places = sorted((m.path, m.function, m.operator) for m in candidate.mutations)
        bug = (*places, *result["failing"])
        if bug in self._bugs:
            return Reason.ALIKE
        self._bugs.add(bug)
        return None

    def _task(
        self, candidate: Candidate, statement: str, files: Sequence[str], failing: Sequence[str]
    ) -> Task:
        """Return the task to fix the bug; the bug is in the only commit that the agent sees.

        Args:
            files: the test files that were run.
            failing: their tests that the bug makes fail.
        """
        environment = self._environment
        passing = [t for file in files for t in self._baseline.passing[file] if t not in set(failing)]
        bug = Commit(message=_MESSAGE, files=dict(candidate.after))
        return Task(
            id=f"{environment.repo.replace('/', '__')}-{candidate.key[:10]}",
            problem=statement,
            environment=dataclasses.replace(environment, history=(*environment.history, bug)),
            checks=self._checks(files, failing, passing, candidate.gold_patch),
            source=SOURCE,
            metadata=_metadata(candidate, failing, len(passing)),
        )

    def _checks(
        self, files: Sequence[str], failing: Sequence[str], passing: Sequence[str], gold_patch: str
    ) -> Checks:
        seconds = sum(self._baseline.seconds[file] for file in files)
        folders = {parent for file in files for parent in PurePosixPath(file).parents}
        helpers = {p: t for p, t in self._project.support.items() if PurePosixPath(p).parent in folders}
        return Checks(
            fail_to_pass=tuple(failing),
            pass_to_pass=tuple(passing),
            test_files={path: self._project.tests[path] for path in files} | helpers,
            gold_patch=gold_patch,
            timeout_s=float(max(_MIN_TASK_TIMEOUT_S, math.ceil(_TASK_SLOWER * seconds))),
        )

    async def _controls(self, file: str) -> tuple[Control, ...]:
        """Return the controls of a test file, shared by all tasks: each fix gives the unchanged repository.

        Raises GraderError.
        """
        key = f"controls {file}"
        if self._journal.get(key) is None:
            task = Task(
                id="controls",
                problem="",
                environment=self._environment,
                checks=self._checks([file], self._baseline.passing[file], (), ""),
                source=SOURCE,
            )
            found = await self._runner.find_controls(task, self._repeats)
            self._journal.put(key, [dataclasses.asdict(control) for control in found])
            self._progress("finding controls", self._tasks)
        return tuple(Control(**{**each, "tests": tuple(each["tests"])}) for each in self._journal.get(key))

    async def _prove(self, tasks: Sequence[Task]) -> None:
        """Add the tasks that validation admits, in their order, with their files' controls."""
        files = {file for task in tasks for file in _files_of(task)}
        async with asyncio.TaskGroup() as group:
            searches = {file: group.create_task(self._controls(file)) for file in sorted(files)}
            proofs = [group.create_task(self._proof(task)) for task in tasks]
        for task, proof in zip(tasks, (proof.result() for proof in proofs), strict=True):
            if proof["refused"] is not None:
                self._rejected[Reason.NOT_ADMITTED] += 1
                self._refused[task.id] = proof["refused"]
                continue
            controls = _controls_of(_files_of(task), {f: search.result() for f, search in searches.items()})
            proven = with_findings(task, controls, tuple(proof["excused"]))
            validation = {**proof["validation"], "controlled": count_controlled(controls)}
            metadata = {**task.metadata, "validation": validation}
            self._tasks.append(dataclasses.replace(proven, metadata=metadata))
            self._schedule.count_task(task.metadata["kind"])

    async def _proof(self, task: Task) -> dict[str, Any]:
        """Return the result of validation as the journal keeps it."""
        key = f"proof {task.id}"
        if self._journal.get(key) is None:
            proven, refusal = await self._runner.prove(task, self._repeats, controls=False)
            validation = proven.metadata["validation"] if proven else None
            excused = list(proven.checks.excused or ()) if proven else []
            self._journal.put(key, {"refused": refusal or None, "validation": validation, "excused": excused})
            self._progress("proving tasks", self._tasks)
        return self._journal.get(key)


def _files_of(task: Task) -> list[str]:
    """Return the files of a task's tests."""
    return sorted({test.split("::")[0] for test in task.checks.named_tests})


def _controls_of(files: Sequence[str], found: Mapping[str, Sequence[Control]]) -> tuple[Control, ...]:
    """Return the controls of a task's test files; an edit outside them was tried with one of them alone."""
    every = [(file, control) for file in files for control in found[file]]
    return tuple(control for file, control in every if control.file == file or len(files) == 1)


def _by_mutation(failures: Sequence[Failure], detected: Sequence[frozenset[str]]) -> list[list[Failure]]:
    """Group failures by the mutation that alone causes them, else by each that contributes.

    Args:
        detected: the tests that fail with each mutation alone.
    """
    groups: list[list[Failure]] = []
    for index, tests in enumerate(detected):
        others = frozenset[str]().union(*(each for i, each in enumerate(detected) if i != index))
        alone = [failure for failure in failures if failure.test in tests - others]
        groups.append(alone or [failure for failure in failures if failure.test in tests])
    return groups


def _metadata(candidate: Candidate, failing: Sequence[str], passing: int) -> Mapping[str, object]:
    changed = [line for line in candidate.gold_patch.splitlines() if line[:1] in ("+", "-")]
    return {
        "kind": candidate.kind,
        "operators": list(candidate.operators),
        "files": sorted(candidate.after),
        "functions": [mutation.function for mutation in candidate.mutations],
        "lines": [mutation.line for mutation in candidate.mutations],
        "changed_lines": sum(not line.startswith(("+++ ", "--- ")) for line in changed),
        "failing_tests": len(failing),
        "failing_share": round(len(failing) / (len(failing) + passing), 4),
        "statement": "failing tests",
    }


def classify_run(expected: Sequence[str], run: TestRun) -> tuple[Reason | None, list[str]]:
    """Return the reason to reject a bug or None, and the tests that it makes fail.

    Args:
        expected: the tests of the run that pass without the bug.
    """
    if not run.finished and not run.statuses:
        return Reason.DID_NOT_END, []
    missing = [test for test in expected if run.statuses.get(test, TestStatus.MISSING) is TestStatus.MISSING]
    if not run.finished:
        return Reason.DID_NOT_END, []
    if missing:
        return Reason.NOT_COLLECTED, []
    failing = [test for test in expected if run.statuses[test] in _FAILED]
    if not failing:
        return Reason.UNDETECTED, []
    if len(failing) > max(_FEW, len(expected) / 2):
        return Reason.TOO_BROKEN, []
    return None, failing
