"""Grading by a data set's own script, which prepares an image and runs its tests.

Where the script's test command is pytest, the trusted runner takes its place: the script prepares, on the
tree without the patch, and the verdict comes out of band. Where it is another runner, the script runs whole
and its log is read, as the SWE-bench harness does; the script's markers then carry a nonce, and whatever
imitates them is refused. A log is text that the code under test can write, so that a patch which imitates
the whole output of an unknown runner cannot be told from an honest one.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from hone.grading.apply import apply_patch
from hone.grading.errors import GraderError, LogRefused
from hone.grading.logs import END, EXIT_CODE, START, Parser, find_parser, read_log, reads_pytest
from hone.grading.patch import FilteredPatch, test_paths
from hone.grading.place import Place
from hone.grading.rules import EXACT, Edition, Rule, find
from hone.grading.run import Job, run_tests
from hone.grading.settings import GradingSettings
from hone.grading.verdict import STATUS_OF_WORD, expected_of, failed, make_verdict, read_report
from hone.sandbox.contract import ExecResult, Sandbox
from hone.tasks.configuration import pytest_arguments
from hone.types import Task, Verdict

PREPARE_TIMEOUT_S = 600.0
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WITH_VALUE = ("-n", "-p", "-k", "-m", "-o", "-W", "-c", "-r", "--tb", "--color", "--rootdir", "--maxfail")
_HEADER = ("#!/bin/bash", "set -uxo pipefail")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The parts of an evaluation script: around, and between, the markers of its test output."""

    before: str
    test: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestCommand:
    python: tuple[str, ...]  # the command that starts its interpreter
    arguments: tuple[str, ...]  # options that decide what is collected
    files: tuple[str, ...]
    env: Mapping[str, str]


def split_script(text: str) -> Script:
    """Raises GraderError when the markers are not there exactly once, in order."""
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
    """The pytest run that a test command is; None where it is another runner, or more than one command.

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
    options, files = _divide(rest)
    kept = pytest_arguments({"pytest.ini": f"[pytest]\naddopts = {shlex.join(options)}"})
    return PytestCommand(python=python, arguments=kept, files=tuple(files), env=env)


def _divide(words: list[str]) -> tuple[list[str], list[str]]:
    """Options with their values, and the files."""
    options: list[str] = []
    files: list[str] = []
    for number, word in enumerate(words):
        of_option = word.startswith("-") or (number > 0 and words[number - 1] in _WITH_VALUE)
        (options if of_option else files).append(word)
    return options, files


async def grade_by_script(
    sandbox: Sandbox, task: Task, patch: FilteredPatch, place: Place, settings: GradingSettings
) -> Verdict:
    """Raises GraderError and SandboxLost."""
    script = split_script(task.checks.script)
    command = find_pytest(script.test)
    parser = find_parser(task.checks.parser)
    if command is not None and reads_pytest(task.checks.parser):
        return await _grade_out_of_band(sandbox, task, patch, place, settings, script, command)
    refusal = await _apply(sandbox, patch, settings)
    if refusal is not None:
        return failed(task.checks, refusal)
    return await _grade_log(sandbox, task, settings, script, parser)


async def _apply(sandbox: Sandbox, patch: FilteredPatch, settings: GradingSettings) -> str | None:
    if not patch.text:
        return None
    return await apply_patch(sandbox, patch.text, set(patch.paths), settings, clean=False)


_ENVIRONMENT = """
{before}
set +x
cd {workdir} && printf '%s\\0' {border} && git status --porcelain=v1 -z --untracked-files=all --no-renames \\
    && printf '%s\\0' {border} && command -v {python} && printf '\\0%s\\0' {border} && env -0
"""


async def _grade_out_of_band(
    sandbox: Sandbox,
    task: Task,
    patch: FilteredPatch,
    place: Place,
    settings: GradingSettings,
    script: Script,
    command: PytestCommand,
) -> Verdict:
    """What the script does before its tests is done to the tree without the patch, whose tests are kept."""
    checks, workdir = task.checks, task.environment.workdir
    border = secrets.token_hex(8)
    python = shlex.quote(command.python[0])
    text = _ENVIRONMENT.format(
        before=script.before, workdir=shlex.quote(workdir), border=border, python=python
    )
    prepared = await _run_script(sandbox, text, PREPARE_TIMEOUT_S)
    parts = prepared.stdout.split(f"{border}\0".encode())
    if prepared.exit_code != 0 or len(parts) != 4:
        raise GraderError(f"the script could not prepare the tests ({_ended(prepared)})")
    changed = [entry[3:] for entry in parts[1].decode("utf-8", "surrogateescape").split("\0") if entry]
    python = parts[2].rstrip(b"\0").decode().strip()
    env = dict(line.split("=", 1) for line in parts[3].decode("utf-8", "replace").split("\0") if "=" in line)
    tests = await _read_files(sandbox, workdir, changed)
    await _reset(sandbox, settings)
    refusal = await _apply(sandbox, patch, settings)
    if refusal is not None:
        return failed(checks, refusal)
    job = Job(
        workdir=workdir,
        run_files=command.files,
        expected=expected_of(checks),
        timeout_s=checks.timeout_s,
        test_files=tests,
        trusted=tuple(path for path in test_paths(task) if path.endswith("/")),
        command=(*command.arguments, *checks.command),
    )
    installed = dataclasses.replace(place, bare=False)
    ran = await run_tests(sandbox, job, installed, settings, env={**env, **command.env}, python=python)
    return read_report(ran.output, ran.nonce, checks, ended=ran.ended, repo=task.environment.repo)


async def _run_script(sandbox: Sandbox, text: str, timeout_s: float, *, merge: bool = False) -> ExecResult:
    """Run a script that bash has read whole before anything of it runs: nothing can change it meanwhile."""
    path = f"/tmp/eval.{secrets.token_hex(8)}.sh"  # noqa: S108 - a name that nobody inside could prepare
    whole = f"evaluate() {{\n{text}\n}}\nrm -f {path}\nevaluate </dev/null\n"
    await sandbox.write(path, whole.encode("utf-8", "surrogateescape"))
    return await sandbox.exec(["bash", path], timeout_s=timeout_s, merge_stderr=merge)


async def _read_files(sandbox: Sandbox, workdir: str, paths: list[str]) -> dict[str, str]:
    """Path -> text of the files that the script wrote or changed: the data set's tests."""
    texts: dict[str, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read(f"{workdir}/{path}")).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, IsADirectoryError):
            continue  # the script deleted it
    return texts


async def _reset(sandbox: Sandbox, settings: GradingSettings) -> None:
    result = await sandbox.exec("git checkout -q -- . && git clean -fdq", timeout_s=settings.slack_s)
    if result.exit_code != 0:
        raise GraderError(f"the repository cannot be reset ({_ended(result)})")


async def _grade_log(
    sandbox: Sandbox, task: Task, settings: GradingSettings, script: Script, parser: Parser
) -> Verdict:
    checks, nonce = task.checks, secrets.token_hex(16)
    text = "\n".join(
        [
            "set -uxo pipefail",
            script.before,
            f": '{START} {nonce}'",
            script.test,
            "SWEBENCH_TEST_EXIT_CODE=$?",
            f": '{END} {nonce}'",
            f'echo "{EXIT_CODE} {nonce}: $SWEBENCH_TEST_EXIT_CODE"',
            script.after,
        ]
    )
    result = await _run_script(sandbox, text, checks.timeout_s, merge=True)
    log = result.stdout.decode("utf-8", "replace")
    tail = log[-16384:]
    if result.timed_out:
        return failed(checks, f"{tail}\nthe tests were stopped after {checks.timeout_s:g} s", applied=True)
    if result.stdout_bytes != len(result.stdout):
        return failed(checks, f"{tail}\nthe tests printed more than can be read", applied=True)
    forged = [mark for mark in (START, END, EXIT_CODE) if _is_forged(mark, nonce, log)]
    if forged:
        evidence = f"the test output holds a marker that the grader did not write: {forged[0]}"
        return make_verdict(checks, {}, finished=False, tampered=evidence, log=tail, seconds=result.seconds)
    about = {"repo": task.environment.repo, "instance_id": task.id, "version": _version(task)}
    try:
        words = read_log(log.replace(f" {nonce}", ""), parser, edition=Edition.V5, strict=True, **about)
    except LogRefused as refusal:
        return failed(checks, f"{tail}\n{refusal}", applied=True)
    expected = expected_of(checks)
    found = {test: find(test, words) for test in expected} if expected is not None else dict(words)
    statuses = {test: STATUS_OF_WORD[word] for test, word in found.items() if word in STATUS_OF_WORD}
    as_expected = checks.rule != EXACT or dict(words) == task.metadata.get("expected")
    if not as_expected:
        tail += "\nthe statuses of the tests are not those that the data set expects"
    rule = Rule.FAIL_ONLY if checks.rule == Rule.FAIL_ONLY else Rule.PASS_AND_FAIL
    return make_verdict(checks, statuses, finished=as_expected, log=tail, seconds=result.seconds, rule=rule)


def _is_forged(mark: str, nonce: str, log: str) -> bool:
    """Whether a marker stands in the log without the nonce, or more than once with it.

    The end's line is traced once and the exit code's twice: `+ echo ...`, and what it prints.
    """
    lines = [line for line in log.splitlines() if mark in line]
    own = [line for line in lines if nonce in line]
    return len(own) != len(lines) or len(own) > (2 if mark == EXIT_CODE else 1)


def _ended(result: ExecResult) -> str:
    if result.timed_out:
        return "it ran out of time"
    said = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
    return f"exit code {result.exit_code}" + (f": {said[-1]}" if said else "")


def _version(task: Task) -> str:
    row = task.metadata.get("row", {})
    return str(row.get("version", "")) if isinstance(row, dict) else ""
