"""Run the solution of a Harbor task, its reference fix, as an agent would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hone.environment import (
    EnvironmentSettings,
    extract_patch,
    prepare_workspace,
    put_files,
    start_agent_sandbox,
)
from hone.environment.environment import BrokenTree
from hone.grading.errors import GraderError
from hone.sandbox.contract import Limits, Provider, SandboxError, SandboxSpec
from hone.tasks.errors import TaskError
from hone.tasks.harbor import HarborTask, read_task
from hone.tasks.harbor.folder import SOLUTION, below
from hone.tasks.harbor.serve import plain_env
from hone.types import Task

_SCRIPT = SOLUTION.removeprefix("solution/")
_TIMEOUT_S = 3600.0  # of a solution whose task sets no limit for the agent


async def run_solution(
    task: Task, provider: Provider, settings: EnvironmentSettings, limits: Limits, *, cache: Path
) -> str:
    """Return the patch that the solution makes in a new sandbox; "" for a task without one. Raises GraderError."""
    harbor = read_task(task.checks.folder)
    if not any(files for _, files in _solutions(harbor, task.checks.folder)):
        return ""
    try:
        workspace = await prepare_workspace(task, provider, cache)
        spec = SandboxSpec(limits=limits)
        sandbox = await start_agent_sandbox(task, workspace, spec, provider, settings)
        async with sandbox:
            for step, files in _solutions(harbor, task.checks.folder):
                await sandbox.exec("rm -rf /solution", cwd="/")
                await put_files(sandbox, files, "/solution")
                done = await sandbox.exec(
                    ["/bin/bash", "-c", f"chmod +x /solution/{_SCRIPT}; exec /solution/{_SCRIPT}"],
                    env={
                        "DEBIAN_FRONTEND": "noninteractive",
                        **plain_env(harbor.config.solution.env, "solution.env"),
                    },
                    timeout_s=harbor.config.agent.timeout_sec or _TIMEOUT_S,
                )
                if done.exit_code != 0:
                    where = f"step {step}" if step else "task"
                    raise GraderError(f"the solution of {where} {task.id} fails: {done.ending}")
            return await extract_patch(sandbox, task, settings)
    except BrokenTree as error:
        raise GraderError(f"the files of the solution of task {task.id} cannot be read: {error}") from error
    except (TaskError, SandboxError) as error:
        raise GraderError(f"the solution of task {task.id} cannot run: {error}") from error


def _solutions(harbor: HarborTask, files: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return (step, packed files) of each solution, in the order of the steps."""
    found: list[tuple[str, dict[str, str]]] = []
    for stage in harbor.stages:
        own = dict(below(files, f"steps/{stage.name}/solution")) if stage.name else {}
        found.append((stage.name, own or dict(below(files, "solution"))))
    return found
