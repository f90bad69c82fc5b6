"""A task in the sandbox of another program: find it, start its sandbox, and grade what was done there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from hone.environment import BrokenTree, extract_patch, prepare_workspace, start_agent_sandbox
from hone.grading import Grader, GraderError, GradingSettings
from hone.grading.verdict import outcome_of
from hone.outcomes import Outcome
from hone.sandbox import Provider, ProviderUnavailable, Sandbox, SandboxError, SandboxSpec
from hone.tasks.errors import TaskError, first_few
from hone.tasks.sources import load_all
from hone.types import Task, Verdict
from hone.utils.files import default_cache_dir

BACKSTOP_S = 3600.0  # providers and graders bound their own work; this only stops a defect from blocking
PROBE_TIMEOUT_S = 30.0


def find_task(file: Path, task_id: str) -> Task:
    """Return a task of a file, in any format that Hone reads. Raises TaskError."""
    tasks = {task.id: task for task in load_all(file)}
    if task_id not in tasks:
        raise TaskError(f"{file} has no task {task_id!r}; it has {first_few(list(tasks))}")
    return tasks[task_id]


def workspaces() -> Path:
    """Return the cache of the tasks' repositories that all programs share."""
    return default_cache_dir() / "workspaces"


async def start_task(
    task: Task, provider: Provider, spec: SandboxSpec, settings: GradingSettings | None = None
) -> Sandbox:
    """Start a sandbox as an agent meets the task: at the base commit, and nothing that reveals the fix.

    Args:
        spec: its environment and limits; image, workdir and files are the task's.
    Raises:
        TaskError, SandboxError.
    """
    workspace = await prepare_workspace(task, provider, workspaces())
    return await start_agent_sandbox(task, workspace, spec, provider, settings or GradingSettings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """How a piece of work ended."""

    outcome: Outcome
    patch: str = ""
    verdict: Verdict | None = None  # None: no patch, or an infrastructure fault
    error: str | None = None


async def grade_sandbox(sandbox: Sandbox, task: Task, grader: Grader) -> Graded:
    """Read the patch out of a sandbox of `start_task` and grade it in a fresh one.

    Faults become outcomes. A lost sandbox counts as broken by the agent, unless the grader's provider cannot
    start another one.
    """
    try:
        async with asyncio.timeout(BACKSTOP_S):
            return await _grade(sandbox, task, grader)
    except TimeoutError:
        return Graded(outcome=Outcome.GRADER_ERROR, error=f"no verdict within {BACKSTOP_S:.0f} s")


async def _grade(sandbox: Sandbox, task: Task, grader: Grader) -> Graded:
    try:
        patch = await extract_patch(sandbox, task, grader.settings)
    except BrokenTree as error:
        return Graded(outcome=Outcome.BROKE_SANDBOX, error=str(error))
    except SandboxError as error:
        return await _lost(sandbox, task, grader.provider, error)
    if not patch.strip():
        return Graded(outcome=Outcome.NO_PATCH)
    try:
        verdict = await grader.grade(task, patch)
    except (GraderError, SandboxError) as error:
        return Graded(outcome=Outcome.GRADER_ERROR, patch=patch, error=str(error))
    return Graded(outcome=outcome_of(verdict), patch=patch, verdict=verdict)


async def _lost(sandbox: Sandbox, task: Task, provider: Provider, error: SandboxError) -> Graded:
    if isinstance(error, ProviderUnavailable):
        return Graded(outcome=Outcome.SANDBOX_ERROR, error=str(error))
    try:
        async with await start_task(task, provider, SandboxSpec(limits=sandbox.spec.limits)) as probe:
            alive = await probe.exec("true", timeout_s=PROBE_TIMEOUT_S)
    except SandboxError as fault:
        return Graded(outcome=Outcome.SANDBOX_ERROR, error=f"{error}; and a new sandbox: {fault}")
    outcome = Outcome.BROKE_SANDBOX if alive.exit_code == 0 else Outcome.SANDBOX_ERROR
    return Graded(outcome=outcome, error=str(error))
