"""Controls: copies of trusted tests with one expectation changed, so that they must fail.

    assert add(1, 2) == 3          the test
    assert add(1, 2) == 4          its control: both cannot pass

A drawn test module runs twice, each time in a process of its own and under the same ids. Each test is itself
in one run and its control in the other; which, is drawn here, for each control alone, and never enters the
sandbox. Code under test that makes any test pass (by replacing the framework, by values that equal
everything, by reading the expected value, by marks that skip) makes controls pass too. It can only guess:
code that can forge every result keeps one chance in two for each control.

Controls are found when a task is validated (`hone.curate.controls`).
"""

from __future__ import annotations

import dataclasses
import json
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hone.environment import TaskEnvironment
from hone.grading.errors import GraderError
from hone.grading.plan import TestJob
from hone.grading.run import Edition, TestRun, run_tests
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import Sandbox
from hone.types import Control, ControlCounts, TestStatus

HELPER_KIB = 64
SECOND_RUN = "the second run, in which these tests ran without their controls:"  # divides a log
FAILED = (TestStatus.FAILED, TestStatus.ERROR)
_SUCCESS = (TestStatus.PASSED, TestStatus.XFAILED)  # of a fail-to-pass test, by the rule of SWE-bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The two runs of one grading with controls."""

    editions: tuple[Edition, Edition]  # of the first and the second run
    run_of: Mapping[str, int]  # test with a control -> the run in which it is itself


async def run_with_controls(
    sandbox: Sandbox,
    job: TestJob,
    environment: TaskEnvironment,
    settings: GradingSettings,
    controls: Sequence[Control],
) -> TestRun:
    """Run the job, and the drawn share of its files again with controls.

    Raises GraderError when the runner does not start or a control does not fit, and SandboxLost.
    """
    drawn = None
    if controls and settings.controls > 0:
        files = {each.file for each in controls}.union(*map(modules_of, controls))
        texts = await read_files(sandbox, job, files)
        try:
            drawn = draw(controls, texts, settings.controls, secrets.SystemRandom())
        except ValueError as error:
            raise GraderError(f"a control does not fit its test file: {error}") from error
    if drawn is None:
        (run,) = await run_tests(sandbox, job, environment, settings)
        return run
    return settle(drawn, await run_tests(sandbox, job, environment, settings, drawn.editions))


async def read_files(sandbox: Sandbox, job: TestJob, files: Iterable[str]) -> dict[str, str]:
    """Return path -> text of those trusted files that exist; a patch cannot change them before the run."""
    texts: dict[str, str] = {}
    for file in sorted(files):
        if file in job.test_files:
            texts[file] = job.test_files[file]
            continue
        try:
            data = await sandbox.read(f"{job.workdir}/{file}")
        except (FileNotFoundError, IsADirectoryError):
            continue
        texts[file] = data.decode("utf-8", "surrogateescape")
    return texts


async def list_helpers(sandbox: Sandbox, job: TestJob) -> list[str]:
    """Return the files of at most HELPER_KIB in the tests' directories, but none that Python or git wrote."""
    if not job.trusted:
        return []
    found = await sandbox.exec(
        ["find", *job.trusted, "-type", "f", "-size", f"-{HELPER_KIB}k", "-not", "-name", "*.pyc", "-print0"]
    )
    return sorted({*found.text.split("\0")[:-1], *job.test_files})


def draw(
    controls: Sequence[Control], texts: Mapping[str, str], share: float, chance: random.Random
) -> Draw | None:
    """Draw the test files that run twice, a control of each test, and the run that has it.

    Args:
        texts: path -> trusted text of every file with controls.
        share: probability of each file, in [0, 1].
        chance: must be unpredictable in a grading.
    Returns:
        None when no file was drawn.
    Raises:
        ValueError: a control does not fit its file.
    """
    modules = {module for control in controls for module in modules_of(control)}
    drawn = {module for module in sorted(modules) if chance.random() < share}
    shuffled = [each for each in chance.sample(controls, len(controls)) if modules_of(each) <= drawn]
    # an edit that several functions see keeps their own from being drawn, or they keep it from being drawn
    several = [each for each in shuffled if len({test.split("[")[0] for test in each.tests}) > 1]
    single = [each for each in shuffled if each not in several]
    order = [*several, *single] if chance.random() < 0.5 else [*single, *several]
    edits: tuple[list[Control], list[Control]] = ([], [])
    run_of: dict[str, int] = {}
    for control in order:
        if run_of.keys().isdisjoint(control.tests):
            itself = chance.randrange(2)
            edits[1 - itself].append(control)
            run_of.update(dict.fromkeys(control.tests, itself))
    if not run_of:
        return None
    files = drawn | {control.file for run in edits for control in run}
    first, second = (edit_files(run, texts, files) for run in edits)
    editions = (Edition(texts=first), Edition(texts=second, files=tuple(sorted(drawn))))
    return Draw(editions=editions, run_of=run_of)


def modules_of(control: Control) -> frozenset[str]:
    """Return the test modules of a control's tests; a bare name's is the file that the control edits."""
    return frozenset(test.split("::")[0] if "::" in test else control.file for test in control.tests)


def edit_files(controls: Sequence[Control], texts: Mapping[str, str], files: Iterable[str]) -> dict[str, str]:
    """Return path -> text of the files with their controls. Raises ValueError for another or no text."""
    missing = sorted(set(files) - set(texts))
    if missing:
        raise ValueError(f"there is no file {missing[0]}")
    return {file: apply(controls, file, texts[file]) for file in sorted(files)}


def apply(controls: Sequence[Control], file: str, text: str) -> str:
    """Return the text of a file with its controls among these. Raises ValueError for another text."""
    data = text.encode("utf-8", "surrogateescape")
    for control in sorted(controls, key=lambda each: each.start, reverse=True):
        if control.file != file:
            continue
        old = control.old.encode("utf-8", "surrogateescape")
        end = control.start + len(old)
        if data[control.start : end] != old:
            raise ValueError(f"{file} does not hold {control.old!r} at byte {control.start}")
        data = data[: control.start] + control.new.encode("utf-8", "surrogateescape") + data[end:]
    return data.decode("utf-8", "surrogateescape")


def settle(drawn: Draw, runs: Sequence[TestRun]) -> TestRun:
    """Return the run of the tests themselves, out of both runs.

    A test without a control counts as it ended in the first run. A control that did not fail while its test
    succeeded is tampering.
    """
    first, second = runs
    statuses = dict(first.statuses)
    failed = passed = 0
    finished = first.finished and second.finished
    evidence = first.tampered or second.tampered
    for test, itself in drawn.run_of.items():
        status = runs[itself].statuses.get(test, TestStatus.MISSING)
        control = runs[1 - itself].statuses.get(test, TestStatus.MISSING)
        statuses[test] = status
        failed += control in FAILED
        if finished and status in _SUCCESS and control not in FAILED:
            passed += 1
            evidence = (
                evidence or f"{test} came back as {status}, and its control, which must fail, as {control}"
            )
    return dataclasses.replace(
        first,
        statuses=statuses,
        titles={**first.titles, **second.titles},
        finished=finished,
        tampered=evidence,
        fault=first.fault or second.fault,
        crashed=first.crashed or second.crashed,
        log=_log_of(drawn, first, second),
        seconds=first.seconds + second.seconds,
        memory_mib=max(first.memory_mib, second.memory_mib),
        controls=ControlCounts(planned=len(drawn.run_of), failed=failed, passed=passed),
    )


def _log_of(drawn: Draw, first: TestRun, second: TestRun) -> str:
    """Return the log that explains the tests: the second one too where a test itself failed in it.

    The same test failed as a control in the first run, which does not explain it.
    """
    if not (first.finished and second.finished):
        return first.log if not first.finished else second.log
    failed = [test for test, itself in drawn.run_of.items() if itself and second.statuses.get(test) in FAILED]
    if not failed:
        return first.log
    return f"{first.log.rstrip()}\n{SECOND_RUN} {json.dumps(failed)}\n{second.log}"


def split_log(log: str) -> tuple[str, str, frozenset[str]]:
    """Return the logs of both runs, and the tests that the second one explains; a log of one run alone: "".

    Tested code could print the line that divides them, so this may explain a verdict, and never decide one.
    """
    for line in log.split("\n"):
        if line.startswith(f"{SECOND_RUN} ["):
            first, _, second = log.partition(f"{line}\n")
            try:
                return first, second, frozenset(map(str, json.loads(line.removeprefix(SECOND_RUN))))
            except ValueError:
                break
    return log, "", frozenset()
