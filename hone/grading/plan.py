"""A task compiled for grading: which tests run, and how, and what a patch may not change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hone.environment import PatchRefused, parse_patch
from hone.grading.errors import GraderError
from hone.grading.rules import (
    BARE_NAMES,
    COLLECTED,
    END,
    EXACT,
    OWN,
    START,
    Parser,
    Rule,
    find_parser,
    reads_pytest,
)
from hone.tasks.configuration import pytest_arguments
from hone.tasks.python.steps import installs_project
from hone.tasks.workspace import is_local
from hone.types import Build, Checks, Task

TEST_DIRECTORIES = {"test", "tests"}
_SCRIPTED = re.compile(r"(?<![\w./-])(?:\./)?([\w-][\w.-]*(?:/[\w-][\w.-]*)+)")  # a path below the repository
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WITH_VALUE = ("-n", "-p", "-k", "-m", "-o", "-W", "-c", "-r", "--tb", "--color", "--rootdir", "--maxfail")
# pip takes the value 0 of this variable for "without isolation", and so builds with the image's own packages.
_OFFLINE = "export PIP_NO_BUILD_ISOLATION=0 PIP_NO_INDEX=1 PIP_NO_DEPS=1"
_HEADER = ("#!/bin/bash", "set -uxo pipefail")


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestJob:
    """One run of pytest by the trusted runner; see `hone/grading/in_sandbox/hone_runner.py`."""

    workdir: str
    run_files: tuple[str, ...]
    reported: Sequence[str] | None  # ids of the tests in the report; None: all that are collected
    timeout_s: float
    test_files: Mapping[str, str] = field(default_factory=dict[str, str])  # written before the run
    trusted: tuple[str, ...] = ()  # directories whose Python files belong to the tests
    command: tuple[str, ...] = ()  # further arguments of pytest
    python: str | None = None  # None: the environment's
    own: tuple[str, ...] = ()  # modules that pytest imports, or is, of which the repository holds the source
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The parts of an evaluation script: before, between and after the markers of its test output."""

    before: str
    test: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestCommand:
    """The pytest run in a script's test command."""

    python: tuple[str, ...]  # the command that starts its interpreter
    arguments: tuple[str, ...]  # options that decide what is collected
    files: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingPlan:
    """What the grader derives from a task, independent of patch and sandbox."""

    task: Task
    job: PytestJob
    protected: tuple[str, ...]  # paths of the tests, which a patch may not change; directories end in "/"
    patched: tuple[str, ...]  # files that the task's test patch changes
    script: Script | None = None
    command: PytestCommand | None = None  # the script's, which the trusted runner replaces
    log_parser: Parser | None = None  # set: the script runs whole, and its log decides

    @property
    def checks(self) -> Checks:
        return self.task.checks

    @property
    def rule(self) -> Rule:
        """The rule for single tests; only a log can tell a test that is absent from one that failed."""
        fail_only = self.log_parser is not None and self.checks.rule == Rule.FAIL_ONLY
        return Rule.FAIL_ONLY if fail_only else Rule.PASS_AND_FAIL

    @property
    def renamed(self) -> bool:
        """Whether the trusted runner's test ids must be renamed as the task's log parser does."""
        return self.log_parser is None and _names_differ(self.checks)


def compile_plan(task: Task) -> GradingPlan:
    """Raise GraderError when no patch of this task can be graded."""
    checks = task.checks
    if not checks.fail_to_pass:
        raise GraderError(f"task {task.id} has no fail-to-pass tests, so it cannot be graded")
    if checks.rule not in (*Rule, COLLECTED, EXACT):
        raise GraderError(f"task {task.id}: there is no rule {checks.rule!r}")
    # a script prepares an image; a repository on this machine has none
    script = split_script(checks.script) if checks.script and not is_local(task.environment) else None
    command = find_pytest(script.test) if script else None
    by_pytest = reads_pytest(checks.parser)
    if script is None and not by_pytest and checks.parser != BARE_NAMES:
        raise GraderError(
            f"task {task.id}: its tests do not run with pytest ({checks.parser}), and it has no evaluation "
            "script or is to run without its image"
        )
    reads_log = script is not None and not (command is not None and by_pytest)
    return GradingPlan(
        task=task,
        job=pytest_job(task),
        protected=protected_paths(task),
        patched=patched_paths(checks.test_patch),
        script=script,
        command=command,
        log_parser=find_parser(checks.parser) if reads_log else None,
    )


def build_of(plan: GradingPlan) -> Build | None:
    """Return the build of the task's extensions: its environment's, or the install command of its script.

    The script installs with what its image has: without network, nothing can be downloaded for a build.
    """
    build = plan.task.environment.build
    if build is not None or plan.script is None:
        return build
    commands = [line for line in plan.script.before.splitlines() if installs_project(line)]
    return Build(command="\n".join([_OFFLINE, *commands])) if commands else None


def pytest_job(task: Task, files: Sequence[str] | None = None) -> PytestJob:
    """Return the job that runs the task's tests, or all tests of `files`. Raises GraderError."""
    checks = task.checks
    every = files is not None or checks.rule == COLLECTED or _names_differ(checks)
    return PytestJob(
        workdir=task.environment.workdir,
        run_files=_run_files(checks) if files is None else tuple(files),
        reported=None if every else checks.named_tests,
        timeout_s=checks.timeout_s,
        test_files=checks.test_files,
        trusted=tuple(path for path in protected_paths(task) if path.endswith("/")),
        command=checks.command,
    )


def _names_differ(checks: Checks) -> bool:
    """Return whether the task names its tests as a log parser does, not by pytest's ids."""
    return checks.parser != OWN and reads_pytest(checks.parser)


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
    command = checks.script.partition(START)[2].partition(END)[0]
    files |= set(_SCRIPTED.findall(command)) - _paths_in(checks.gold_patch)
    folders = {
        f"{parent}/"
        for file in files
        for parent in PurePosixPath(file).parents
        if parent.name in TEST_DIRECTORIES
    }
    return tuple(sorted(files | folders))


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
    """Raise GraderError unless each marker is there exactly once, in order."""
    lines = [line for line in text.splitlines() if line.strip() not in _HEADER]
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if len(starts) != 1 or len(ends) != 1 or starts[0] > ends[0]:
        raise GraderError(f"the script does not mark its test output once, with {START!r} and {END!r}")
    (first,), (last,) = starts, ends
    return Script(
        before="\n".join(lines[:first]),
        test="\n".join(lines[first + 1 : last]),
        after="\n".join(lines[last + 1 :]),
    )


def find_pytest(command: str) -> PytestCommand | None:
    """Return the pytest run of a test command; None for another runner, or for several commands.

    >>> find_pytest("python -m pytest -rA --tb=no tests/test_a.py").files
    ('tests/test_a.py',)
    """
    lines = [line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        words = shlex.split(lines[0]) if len(lines) == 1 else []
    except ValueError:
        return None
    if any(set(word) & set(";|&<>$`") for word in words):
        return None
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words and words[0].rpartition("/")[2] in ("pytest", "py.test"):
        folder = words[0].rpartition("/")[0]
        python, rest = (f"{folder}/python" if folder else "python",), words[1:]
    elif len(words) > 2 and re.fullmatch(r"(.*/)?python[\d.]*", words[0]) and words[1:3] == ["-m", "pytest"]:
        python, rest = (words[0],), words[3:]
    else:
        return None
    options: list[str] = []
    files: list[str] = []
    for number, word in enumerate(rest):
        of_option = word.startswith("-") or (number > 0 and rest[number - 1] in _WITH_VALUE)
        (options if of_option else files).append(word)
    arguments = pytest_arguments({"pytest.ini": f"[pytest]\naddopts = {shlex.join(options)}"})
    return PytestCommand(python=python, arguments=arguments, files=tuple(files), env=env)
