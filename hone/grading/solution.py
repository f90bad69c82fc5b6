"""Run the solution of a Harbor task, its reference fix, as an agent would."""

from __future__ import annotations

from pathlib import Path

from hone.environment import EnvironmentSettings, extract_patch, prepare_workspace, start_agent_sandbox
from hone.environment.environment import BrokenTree
from hone.grading.errors import GraderError
from hone.sandbox.contract import Limits, Provider, SandboxError, SandboxSpec
from hone.tasks.errors import TaskError
from hone.tasks.harbor import read_task, solution_commands
from hone.types import Task

_TIMEOUT_S = 3600.0  # of a solution whose task sets no limit for the agent


async def run_solution(
    task: Task, provider: Provider, settings: EnvironmentSettings, limits: Limits, *, cache: Path
) -> str:
    """Return the patch that the solution makes in a new sandbox; "" without one. Raises GraderError."""
    try:
        commands = solution_commands(task.checks.folder)
        if not commands:
            return ""
        timeout_s = read_task(task.checks.folder).config.agent.timeout_sec or _TIMEOUT_S
        workspace = await prepare_workspace(task, provider, cache)
        spec = SandboxSpec(limits=limits)
        async with await start_agent_sandbox(task, workspace, spec, provider, settings) as sandbox:
            for command in commands:
                done = await sandbox.exec(["bash", "-s"], stdin=command.encode(), timeout_s=timeout_s)
                if done.exit_code != 0:
                    raise GraderError(f"the solution of task {task.id} fails: {done.ending}")
            return await extract_patch(sandbox, task, settings)
    except BrokenTree as error:
        raise GraderError(f"the files of the solution of task {task.id} cannot be read: {error}") from error
    except (TaskError, SandboxError) as error:
        raise GraderError(f"the solution of task {task.id} cannot run: {error}") from error
