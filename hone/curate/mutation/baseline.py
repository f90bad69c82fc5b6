"""The tests of the unchanged repository: which always pass, and which code each test file reaches.

A call of `hit` in each block of a copy of the code records the blocks that a test file reaches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import libcst as cst

from hone.curate.journal import Journal
from hone.curate.mutation.project import Project
from hone.curate.mutation.source import Edit, Source, apply, is_text
from hone.curate.runner import REWRITE, Runner, last_line, trial_task
from hone.grading.run import TestRun
from hone.tasks.errors import TaskError
from hone.types import Environment, TestStatus

MAX_FILES = 6  # test files that run on one bug
MAX_TIMEOUT_S = 900.0  # of a run of all tests
_REPORT_LAST = ("-s", "--tb=no", "-rN")  # the report of the probes is the end of the log
REPORTER = (
    "test_hone_probe.py"  # runs after the test file, in its process, and prints a bit mask of the blocks
)
REPORTING = {
    "hone_probe.py": "reached = set()\nhit = reached.add\n",  # at the repository's root: tests import from it
    REPORTER: (
        "def test_report():\n"
        "    from hone_probe import reached\n\n"
        "    print(f'\\nhone-reached {sum(1 << block for block in reached):x}.')\n"
    ),
}
_IMPORT = "__import__('hone_probe')"
_REPORT = re.compile(r"^hone-reached ([0-9a-f]+)\.$", re.MULTILINE)


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
            sorted(files, key=lambda file: (not _is_named_after(path, file), len(self.passing[file]), file))
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
            excluded_tests[file] = f"does not run alone: {last_line(run.log)}"
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


def instrument(source: Source, blocks: Iterable[cst.BaseSuite], first: int) -> str:
    """Return the file with a call of `hit` in each block; its blocks are numbered from `first`."""
    edits = [edit for number, block in enumerate(blocks, first) for edit in _hit(source, block, number)]
    data = apply(source.data, edits)
    assert data is not None, "insertions do not overlap"
    return data.decode()


def _hit(source: Source, block: cst.BaseSuite, number: int) -> list[Edit]:
    call = f"{_IMPORT}.hit({number})"
    statements = [statement for statement in block.body if not is_text(statement)]
    if not statements:
        return []
    start = source.span(statements[0])[0]
    if isinstance(block, cst.SimpleStatementSuite):
        return [Edit(start, start, f"{call}; ")]
    return [Edit(start, start, f"{call}{source.newline}{source.indentation(statements[0])}")]


def reached(log: str) -> int | None:
    """Return the bit mask of the blocks that a test file reaches; None where the log has no report."""
    found = _REPORT.search(log)
    return int(found[1], 16) if found else None


def _is_named_after(path: str, test_file: str) -> bool:
    """Return whether a test file is named after a module."""
    stem = PurePosixPath(path).stem
    if stem == "__init__":
        stem = PurePosixPath(path).parent.name
    return stem.strip("_") in PurePosixPath(test_file).stem
