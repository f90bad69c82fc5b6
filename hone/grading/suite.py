"""Run complete test files of a task's repository, for making tasks; grading does not use it.

Sandbox, runner and plugins are those of a grading, so observations made here hold there. The patch is
trusted: it may change tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hone.environment import PatchRefused, apply_trusted_patch, resolve_environment
from hone.grading.errors import GraderError
from hone.grading.grade import configured_job
from hone.grading.plan import pytest_job
from hone.grading.run import TestRun, run_tests, start_sandbox
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import Limits, Provider, SandboxLost
from hone.tasks.errors import TaskError
from hone.types import Task

_DEFAULT_LIMITS = Limits()


async def run_suite(
    task: Task,
    patch: str,
    *,
    provider: Provider,
    cache: Path,
    settings: GradingSettings,
    limits: Limits = _DEFAULT_LIMITS,
    files: Sequence[str] | None = None,
) -> TestRun:
    """Run test files after a trusted patch; a patch that does not apply gives an unfinished run.

    Args:
        cache: directory of the tasks' repositories.
        files: paths below the root; default: those that the task's checks name.
    Raises:
        GraderError: the sandbox or the runner did not start, or the task's repository cannot be prepared.
    """
    try:
        environment = await resolve_environment(task, cache, settings)
    except TaskError as error:
        raise GraderError(str(error)) from error
    job = dataclasses.replace(pytest_job(task, files), reported=None)
    workdir = task.environment.workdir
    sandbox = await start_sandbox(provider, workdir, environment, limits, whole_report=True)
    try:
        for trusted in filter(None, (patch, task.checks.test_patch)):
            await apply_trusted_patch(sandbox, trusted, timeout_s=settings.slack_s)
        run = await run_tests(sandbox, configured_job(task, job, environment), environment, settings)
    except PatchRefused as refusal:
        return TestRun(statuses={}, finished=False, log=str(refusal))
    except SandboxLost as lost:
        return TestRun(statuses={}, finished=False, log=f"the sandbox was lost: {lost}")
    finally:
        await sandbox.close()
    if run.tampered is None:
        return run
    return dataclasses.replace(run, finished=False, log=run.tampered)
