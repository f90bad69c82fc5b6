"""Grade with a data set's own script, which prepares an image and runs its tests.

A script whose test command the trusted runner can replace (`hone.grading.commands`) only prepares the tree
without the patch, and the results come out of band. Any other script runs whole, and its log is read as the
SWE-bench harness does; the markers then carry a nonce, and an imitation of them is tampering. A script
without markers gets them around it. A log is text that the code under test can write: a patch that prints the
complete output of an honest run cannot be told from one.
"""

from __future__ import annotations

import dataclasses
import secrets
import shlex
from collections.abc import Sequence

from hone.environment import FilteredPatch, TaskEnvironment, apply_patch, put_libraries
from hone.grading.commands import Indirect, TestCommand, follow
from hone.grading.errors import GraderError, LogRefused
from hone.grading.framework import modules_in_tree
from hone.grading.plan import GradingPlan, Script, TestJob, job_of
from hone.grading.rules import END, EXACT, EXIT_CODE, START, Edition, describe, find, read_log
from hone.grading.run import RunJob, TestRun
from hone.grading.settings import GradingSettings
from hone.grading.titles import can_name
from hone.grading.verdict import statuses_of
from hone.sandbox.contract import ExecResult, Sandbox

PREPARE_TIMEOUT_S = 600.0
LOG_CHARACTERS = 16384  # of a script's output, kept from its end

_ENVIRONMENT = """
{before}
set +x
cd {workdir} && printf '%s\\0' {border} && git status --porcelain=v1 -z --untracked-files=all --no-renames \\
    && printf '%s\\0' {border} && {{ command -v {python} || command -v python3; }} \\
    && printf '\\0%s\\0' {border} && env -0
"""
_LOG_RUN = """set -uxo pipefail
{before}
: '{START} {nonce}'
{test}
SWEBENCH_TEST_EXIT_CODE=$?
: '{END} {nonce}'
echo "{EXIT_CODE} {nonce}: $SWEBENCH_TEST_EXIT_CODE"
{after}"""
# The script may exit, change its tracing or stop at the first failure; its exit code becomes that of the run.
_UNMARKED_RUN = """printf '%s\\n' '{START} {nonce}'
(
{before}
{test}
)
code=$?
printf '\\n%s\\n' '{END} {nonce}' '{EXIT_CODE} {nonce}: '$code
exit $code"""


async def run_script(
    sandbox: Sandbox,
    plan: GradingPlan,
    patch: FilteredPatch,
    environment: TaskEnvironment,
    settings: GradingSettings,
    run: RunJob,
) -> Sequence[TestRun]:
    """Run the plan's script on the patched tree; `run` runs the test command of a script that has one.

    Raises PatchRefused, GraderError and SandboxLost.
    """
    assert plan.script is not None
    job = None
    if plan.command is not None:
        job = await _prepare_job(sandbox, plan, plan.script, plan.command, settings)
    if job is None:
        await _apply(sandbox, patch, environment, settings)
        return [await _run_log(sandbox, plan, plan.script)]
    own = await modules_in_tree(sandbox, environment, job.workdir)
    await _apply(sandbox, patch, environment, settings)
    return await run(sandbox, dataclasses.replace(job, own=own), environment)


async def _apply(
    sandbox: Sandbox, patch: FilteredPatch, environment: TaskEnvironment, settings: GradingSettings
) -> None:
    if patch.text:
        await apply_patch(sandbox, patch.text, set(patch.paths), timeout_s=settings.slack_s, clean=False)
        await put_libraries(sandbox, environment.libraries)


async def _prepare_job(
    sandbox: Sandbox,
    plan: GradingPlan,
    script: Script,
    command: TestCommand | Indirect,
    settings: GradingSettings,
) -> TestJob | None:
    """Prepare the tree without the patch, return the job of the tests that it then holds, and reset it.

    None for an indirect command that leads to no test run which the trusted runner can take over.
    """
    workdir, border = plan.job.workdir, secrets.token_hex(8)
    text = _ENVIRONMENT.format(
        before=script.before,
        workdir=shlex.quote(workdir),
        border=border,
        python=shlex.quote("python" if isinstance(command, Indirect) else command.python[0]),
    )
    prepared = await _run_bash(sandbox, text, PREPARE_TIMEOUT_S)
    parts = prepared.stdout.split(f"{border}\0".encode())
    if prepared.exit_code != 0 or len(parts) != 4:
        raise GraderError(f"the script could not prepare the tests ({prepared.ending})")
    changed = [entry[3:] for entry in parts[1].decode("utf-8", "surrogateescape").split("\0") if entry]
    env = dict(line.split("=", 1) for line in parts[3].decode("utf-8", "replace").split("\0") if "=" in line)
    found = command
    if isinstance(found, Indirect):
        found = follow(found, await _read_files(sandbox, workdir, found.files))
    job = None
    if found is not None and can_name(found.suite, plan.checks.parser):
        prepared_job = dataclasses.replace(
            plan.job,
            test_files=await _read_files(sandbox, workdir, changed),
            python=parts[2].rstrip(b"\0").decode().strip(),
            env=env,
        )
        job = job_of(found, prepared_job, plan.protected)
    reset = await sandbox.exec("git checkout -q -- . && git clean -fdq", timeout_s=settings.slack_s)
    if reset.exit_code != 0:
        raise GraderError(f"the repository cannot be reset ({reset.ending})")
    return job


async def _run_bash(sandbox: Sandbox, text: str, timeout_s: float, *, merge: bool = False) -> ExecResult:
    """Run a script that bash reads completely before it runs, so that nothing can change it meanwhile."""
    path = f"/tmp/eval.{secrets.token_hex(8)}.sh"  # noqa: S108 - no process inside can predict the name
    whole = f"evaluate() {{\n{text}\n}}\nrm -f {path}\nevaluate </dev/null\n"
    await sandbox.write(path, whole.encode("utf-8", "surrogateescape"))
    return await sandbox.exec(["bash", path], timeout_s=timeout_s, merge_stderr=merge)


async def _read_files(sandbox: Sandbox, workdir: str, paths: Sequence[str]) -> dict[str, str]:
    """Return path -> text of the files that the script wrote or changed: the data set's tests."""
    texts: dict[str, str] = {}
    for path in paths:
        try:
            texts[path] = (await sandbox.read(f"{workdir}/{path}")).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, IsADirectoryError):
            continue  # the script deleted it
    return texts


async def _run_log(sandbox: Sandbox, plan: GradingPlan, script: Script) -> TestRun:
    nonce = secrets.token_hex(16)
    words = {"before": script.before, "test": script.test, "after": script.after, "nonce": nonce}
    template = _LOG_RUN if script.marked else _UNMARKED_RUN
    text = template.format(START=START, END=END, EXIT_CODE=EXIT_CODE, **words)
    result = await _run_bash(sandbox, text, plan.checks.timeout_s, merge=True)
    return read_script_log(plan, result, nonce)


def read_script_log(plan: GradingPlan, result: ExecResult, nonce: str) -> TestRun:
    """Return the test run in the output of a script whose markers carry `nonce`."""
    assert plan.log_parser is not None
    checks, log = plan.checks, result.stdout.decode("utf-8", "replace")
    tail = log[-LOG_CHARACTERS:]
    run = TestRun(statuses={}, finished=False, by_log=True, log=tail, seconds=result.seconds)
    problem = ""
    forged = [mark for mark in (START, END, EXIT_CODE) if _is_forged(mark, nonce, log)]
    if result.timed_out:
        problem = f"the tests were stopped after {checks.timeout_s:g} s"
    elif result.stdout_bytes != len(result.stdout):
        problem = "the tests printed more than can be read"
    elif forged:
        evidence = f"the test output holds a marker that the grader did not write: {forged[0]}"
        return dataclasses.replace(run, tampered=evidence)
    else:
        try:
            words = read_log(
                log.replace(f" {nonce}", ""), plan.log_parser, edition=Edition.V5, strict=True,
                **describe(plan.task),
            )  # fmt: skip
        except LogRefused as refusal:
            problem = str(refusal)
            run = dataclasses.replace(run, fault=f"the test log cannot be counted: {problem}")
        else:
            named = plan.job.reported
            found = words if named is None else {test: find(test, words) for test in named}
            if checks.rule == EXACT and dict(words) != plan.task.metadata.get("expected"):
                problem = "the statuses of the tests are not those that the data set expects"
            run = dataclasses.replace(run, statuses=statuses_of(found), finished=not problem)
    return dataclasses.replace(run, log=f"{run.log}\n{problem}") if problem else run


def _is_forged(mark: str, nonce: str, log: str) -> bool:
    """Return whether a marker is in the log without the nonce, or too often with it.

    bash traces the end marker once and the line of the exit code twice: `+ echo ...` and its output.
    """
    lines = [line for line in log.splitlines() if mark in line]
    own = [line for line in lines if nonce in line]
    return len(own) != len(lines) or len(own) > (2 if mark == EXIT_CODE else 1)
