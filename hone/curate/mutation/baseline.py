"""The tests of the unchanged repository: which always pass, and which code each test file reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.curate.journal import Journal
from hone.curate.mutation.probes import REPORTER, REPORTING, instrument, is_named_after, reached
from hone.curate.mutation.project import Project
from hone.curate.runner import REWRITE, Runner, trial_task
from hone.grading.run import TestRun
from hone.tasks.errors import TaskError
from hone.types import Environment, TestStatus

MAX_FILES = 6  # test files that run on one bug
MAX_TIMEOUT_S = 900.0  # of a run of all tests
_REPORT_LAST = ("-s", "--tb=no", "-rN")  # the report of the probes is the end of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    passing: Mapping[str, tuple[str, ...]]  # test file -> ids of its tests that always pass
    excluded_tests: Mapping[str, str]  # test or test file -> why it is not used
    seconds: Mapping[str, float]  # test file -> its running time
    reach: Mapping[str, int]  # test file -> bit mask of the blocks that it reaches
    first: Mapping[str, int]  # path of a module -> number of its first block
    blocks: Mapping[str, int]  # path of a module -> how many blocks it has

    def files_reaching(self, path: str, block: int | None) -> tuple[str, ...]:
        """Return the test files that reach a block of a module (None: any block), the most specific first."""
        first = self.first[path]
        bits = (1 << self.blocks[path]) - 1 << first if block is None else 1 << first + block
        files = [file for file, reached in self.reach.items() if reached & bits and self.passing.get(file)]
        return tuple(
            sorted(files, key=lambda file: (not is_named_after(path, file), len(self.passing[file]), file))
        )


async def measure_baseline(
    project: Project, environment: Environment, runner: Runner, journal: Journal
) -> Baseline:
    """Run all tests together, then each file alone, then each file with the code instrumented.

    Raises TaskError when no test passes in every run, and GraderError when no sandbox starts.
    """
    first: dict[str, int] = {}
    total = 0
    for path, module in sorted(project.modules.items()):
        first[path], total = total, total + len(module.blocks)
    known = journal.get("baseline")
    if known is None:
        known = await _measured(project, environment, runner, first)
        journal.put("baseline", known)
    baseline = Baseline(
        passing={file: tuple(tests) for file, tests in known["passing"].items()},
        excluded_tests=known["set_aside"],
        seconds=known["seconds"],
        reach={file: int(bits, 16) for file, bits in known["reach"].items()},
        first=first,
        blocks={path: len(module.blocks) for path, module in project.modules.items()},
    )
    if not any(baseline.passing.values()):
        raise TaskError(f"no test passes on the unchanged repository: {_why(baseline.excluded_tests)}")
    return baseline


def _why(excluded_tests: Mapping[str, str]) -> str:
    return next((f"{name} {reason}" for name, reason in excluded_tests.items()), "none was collected")


async def _measured(
    project: Project, environment: Environment, runner: Runner, first: Mapping[str, int]
) -> dict[str, Any]:
    files = sorted(project.tests)
    plain = trial_task(environment, {}, timeout_s=MAX_TIMEOUT_S)
    rewritten = trial_task(environment, {}, timeout_s=MAX_TIMEOUT_S, command=REWRITE)
    code = {
        path: instrument(module.source, module.blocks, first[path])
        for path, module in project.modules.items()
    }
    probed = trial_task(environment, {**code, **REPORTING}, timeout_s=MAX_TIMEOUT_S, command=_REPORT_LAST)
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(runner.run(plain, files))
        alone = {file: group.create_task(runner.run(rewritten, [file])) for file in files}
        traced = {file: group.create_task(runner.run(probed, [file, REPORTER])) for file in files}
    runs = {file: task.result() for file, task in alone.items()}
    passing, excluded_tests = select_stable_tests(files, whole.result(), runs)
    reach = {file: reached(task.result().log) for file, task in traced.items()}
    for file, bits in reach.items():
        if bits is None and file in passing:
            excluded_tests[file] = "does not report the code it reaches: its run with probes did not finish"
    return {
        "passing": {file: tests for file, tests in passing.items() if reach[file] is not None},
        "set_aside": excluded_tests,
        "seconds": {file: run.seconds for file, run in runs.items()},
        "reach": {file: f"{bits:x}" for file, bits in reach.items() if bits is not None},
    }


def select_stable_tests(
    files: Sequence[str], whole: TestRun, alone: Mapping[str, TestRun]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return file -> tests that pass in both runs, and test or file -> why it is excluded."""
    passing: dict[str, list[str]] = {}
    excluded_tests: dict[str, str] = {}
    for file in files:
        run = alone[file]
        tests = dict.fromkeys(
            test for each in (whole, run) for test in each.statuses if test.split("::")[0] == file
        )
        if not run.finished:
            excluded_tests[file] = f"does not run alone: {_last_line(run.log)}"
            continue
        if not tests:
            errors = [line.strip() for line in run.log.splitlines() if "while it was imported" in line]
            excluded_tests[file] = f"cannot be collected: {errors[-1]}" if errors else "has no tests"
            continue
        passing[file] = []
        for test in tests:
            results = [run.statuses.get(test, TestStatus.MISSING)]
            if whole.finished:
                results.append(whole.statuses.get(test, TestStatus.MISSING))
            if set(results) == {TestStatus.PASSED}:
                passing[file].append(test)
            elif TestStatus.PASSED in results:
                excluded_tests[test] = "passes in one run and not in the other"
            elif set(results) & {TestStatus.FAILED, TestStatus.ERROR, TestStatus.MISSING}:
                excluded_tests[test] = "does not pass on the unchanged repository"
    return passing, excluded_tests


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
