"""A task compiled for grading: which tests run, and how, and what a patch may not change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from hone.environment import PatchRefused, parse_patch
from hone.grading.commands import Indirect, Suite, TestCommand, find_command
from hone.grading.errors import GraderError
from hone.grading.rules import (
    BARE_NAMES,
    COLLECTED,
    END,
    EXACT,
    OWN,
    OWN_UNITTEST,
    START,
    Parser,
    Rule,
    find_parser,
    reads_pytest,
)
from hone.grading.script_text import check_verdicts
from hone.grading.titles import can_name
from hone.tasks.harbor import is_harbor, read_task
from hone.tasks.python.steps import installs_project
from hone.tasks.workspace import is_local
from hone.types import Checks, Task

TEST_DIRECTORIES = {"test", "tests"}
_SCRIPTED = re.compile(r"(?<![\w./-])(?:\./)?([\w-][\w.-]*(?:/[\w-][\w.-]*)+)")  # a path below the repository
_CASE = re.compile(r"(\w+) \(([\w.]+)\)")  # how unittest names a test: test_x (package.module.Class)
# pip takes the value 0 of this variable for "without isolation", and so builds with the image's own packages.
_OFFLINE = "export PIP_NO_BUILD_ISOLATION=0 PIP_NO_INDEX=1 PIP_NO_DEPS=1"
_HEADER = ("#!/bin/bash", "set -uxo pipefail")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestJob:
    """One run of tests by the trusted runner; see `hone/grading/in_sandbox/hone_runner.py`."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    workdir: str
    run_files: tuple[str, ...]
    reported: Sequence[str] | None  # ids of the tests in the report; None: all that are collected
    timeout_s: float
    test_files: Mapping[str, str] = field(default_factory=dict[str, str])  # written before the run
    trusted: tuple[str, ...] = ()  # directories whose Python files belong to the tests
    command: tuple[str, ...] = ()  # further arguments of pytest
    suite: Suite = Suite.PYTEST
    program: tuple[str, ...] = ()  # of unittest: the script, or "-m" and the module; then its arguments
    python: str | None = None  # None: the environment's
    own: tuple[str, ...] = ()  # modules that pytest imports, or is, of which the repository holds the source
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The parts of an evaluation script: before, between and after the markers of its test output.

    A script without markers is all `test`, or `before` and a last command that the trusted runner replaces.
    """

    before: str
    test: str
    after: str
    marked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingPlan:
    """What the grader derives from a task, independent of patch and sandbox."""

    task: Task
    job: TestJob
    protected: tuple[str, ...]  # paths of the tests, which a patch may not change; directories end in "/"
    patched: tuple[str, ...]  # files that the task's test patch changes
    script: Script | None = None
    command: TestCommand | Indirect | None = None  # the script's, which the trusted runner replaces
    log_parser: Parser | None = None  # of the script's log, which decides where nothing replaces its command

    @property
    def checks(self) -> Checks:
        return self.task.checks

    @property
    def by_log(self) -> bool:
        """Whether a log decides, whatever the tree holds."""
        return self.script is not None and self.command is None


def compile_plan(task: Task) -> GradingPlan:
    """Raise GraderError, of a Harbor task TaskError, when no patch of this task can be graded."""
    checks = task.checks
    if not checks.fail_to_pass:
        raise GraderError(f"task {task.id} has no fail-to-pass tests, so it cannot be graded")
    if is_harbor(task):
        read_task(checks.folder)
        return GradingPlan(task=task, job=make_job(task), protected=(), patched=())
    if checks.rule not in (*Rule, COLLECTED, EXACT):
        raise GraderError(f"task {task.id}: there is no rule {checks.rule!r}")
    given = split_script(checks.script) if checks.script else None
    command = find_command(given.test) if given else None
    if isinstance(command, TestCommand) and not can_name(command.suite, checks.parser):
        command = None
    # a script prepares an image; of a repository on this machine, the test command alone runs
    local = is_local(task.environment)
    script, job = None if local else given, make_job(task)
    if local and isinstance(command, TestCommand) and command.suite is not Suite.PYTEST:
        job = job_of(command, job, protected_paths(task))
    if script is None and job.suite is Suite.PYTEST and not _runs_with_pytest(checks.parser):
        raise GraderError(
            f"task {task.id}: its tests do not run with pytest ({checks.parser}), and it has no evaluation "
            "script or is to run without its image"
        )
    reads_log = script is not None and not isinstance(command, TestCommand)
    if script is not None and reads_log:
        check_verdicts(checks.script, script.test, checks.named_tests)
    return GradingPlan(
        task=task,
        job=job,
        protected=protected_paths(task),
        patched=patched_paths(checks.test_patch),
        script=script,
        command=command,
        log_parser=find_parser(checks.parser) if reads_log else None,
    )


def build_command(plan: GradingPlan) -> str:
    """Return what builds the task's extensions: its environment's, or its script's install command; or ""

    The script installs with what its image has: without network, nothing can be downloaded for a build.
    """
    if plan.task.environment.build or plan.script is None:
        return next(iter(plan.task.environment.build), "")
    commands = [line for line in plan.script.before.splitlines() if installs_project(line)]
    return "\n".join([_OFFLINE, *commands]) if commands else ""


def job_of(command: TestCommand, job: TestJob, protected: Iterable[str]) -> TestJob:
    """Return a job that runs a test command.

    The text of the files that it runs is that of trusted tests: of unittest's, only protected ones.
    """
    files = command.files
    if command.suite is Suite.UNITTEST:
        files = tuple(path for path in protected if path.endswith(".py"))
    return replace(
        job,
        suite=command.suite,
        run_files=files,
        reported=job.reported if command.suite is Suite.PYTEST else None,
        command=(*command.arguments, *job.command),
        program=command.program,
        env={**job.env, **command.env},
    )


def make_job(task: Task, files: Sequence[str] | None = None) -> TestJob:
    """Return the job that runs the task's tests, or all tests of `files`. Raises GraderError."""
    checks = task.checks
    by_unittest = checks.parser == OWN_UNITTEST
    named = by_unittest or checks.parser == OWN or (checks.parser == BARE_NAMES and not checks.script)
    every = files is not None or checks.rule == COLLECTED or not named
    # a data set's own command runs no test when a module cannot be imported
    kept = ("--continue-on-collection-errors",) if checks.parser == OWN else ()
    run_files = _run_files(checks) if files is None else tuple(files)
    return TestJob(
        workdir=task.environment.workdir,
        run_files=run_files,
        reported=None if every else checks.named_tests,
        timeout_s=checks.timeout_s,
        test_files=checks.test_files,
        trusted=tuple(path for path in protected_paths(task) if path.endswith("/")),
        command=(*kept, *checks.command),
        suite=Suite.UNITTEST if by_unittest else Suite.PYTEST,
        program=("-m", "unittest", *run_files) if by_unittest else (),
    )


def _runs_with_pytest(parser: str) -> bool:
    return reads_pytest(parser) or parser == BARE_NAMES


def _run_files(checks: Checks) -> tuple[str, ...]:
    files = [test.split("::")[0] for test in checks.named_tests if "::" in test]
    if len(files) < len(checks.named_tests):  # some are names without a file
        files += [path for path in patched_paths(checks.test_patch) if path.endswith(".py")]
    return tuple(dict.fromkeys(files))


def protected_paths(task: Task) -> tuple[str, ...]:
    """Return the paths of the tests: their files, and the `tests` directories around them (ending in "/").

    The files are those of the tests that the task names, of its test patch, and those that its script's test
    command names (one may be the runner itself), unless the reference fix changes them.
    """
    checks = task.checks
    files = {test.split("::")[0] for test in checks.named_tests}
    files |= set(checks.test_files) | _paths_in(checks.test_patch)
    marked = START in checks.script or END in checks.script
    text = checks.script.partition(START)[2].partition(END)[0] if marked else split_script(checks.script).test
    command = find_command(text)
    named = {*_SCRIPTED.findall(text), *case_files(checks.named_tests)}
    if isinstance(command, TestCommand) and command.suite is not Suite.PYTEST:
        named |= set(command.files)
    files |= named - _paths_in(checks.gold_patch)
    folders = {
        f"{parent}/"
        for file in files
        for parent in PurePosixPath(file).parents
        if parent.name in TEST_DIRECTORIES
    }
    return tuple(sorted(files | folders))


def case_files(tests: Iterable[str]) -> tuple[str, ...]:
    """Return the files that hold tests which unittest names; some may not exist.

    >>> case_files(["test_x (pkg.test_a.Case)", "test_y (pkg.test_a.Case.test_y)"])
    ('pkg/test_a.py', 'pkg/test_a/__init__.py')
    """
    modules = set[str]()
    for test in tests:
        if found := _CASE.fullmatch(test):
            modules.add(found[2].removesuffix(f".{found[1]}").rpartition(".")[0].replace(".", "/"))
    return tuple(sorted(file for each in modules if each for file in (f"{each}.py", f"{each}/__init__.py")))


def patched_paths(patch: str) -> tuple[str, ...]:
    """Return the files that a trusted patch names. Raises GraderError."""
    try:
        return tuple(path for part in parse_patch(patch) for path in part.paths)
    except PatchRefused as refusal:
        raise GraderError(f"the task's own test patch cannot be read: {refusal}") from None


def _paths_in(patch: str) -> set[str]:
    """Return the files of a data set's own patch; none when it cannot be read."""
    try:
        return set(patched_paths(patch))
    except GraderError:
        return set()


def split_script(text: str) -> Script:
    """Raise GraderError unless each marker is there exactly once, in order, or none is there at all."""
    lines = [line for line in text.splitlines() if line.strip() not in _HEADER]
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if not starts and not ends:
        return _split_unmarked(text)
    if len(starts) != 1 or len(ends) != 1 or starts[0] > ends[0]:
        raise GraderError(f"the script does not mark its test output once, with {START!r} and {END!r}")
    (first,), (last,) = starts, ends
    return Script(
        before="\n".join(lines[:first]),
        test="\n".join(lines[first + 1 : last]),
        after="\n".join(lines[last + 1 :]),
    )


def _split_unmarked(text: str) -> Script:
    before, _, last = text.rstrip().rpartition("\n")
    if before.rstrip().endswith("\\") or find_command(last) is None:
        before, last = "", text
    return Script(before=before, test=last, after="", marked=False)
