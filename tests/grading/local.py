"""Tasks of repositories on this machine, graded one patch after the other."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest

from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Checks, Environment, Task, Verdict
from tests.grading.calc import git
from tests.grading.example import write_tree


def repository(folder: Path, files: dict[str, str]) -> str:
    """Make a git repository of these files; return its commit."""
    folder.mkdir(parents=True)
    write_tree(folder, files)
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Base")
    return git(folder, "rev-parse", "HEAD")


def local_task(
    tmp_path: Path, files: dict[str, str], paths: tuple[str, ...] = ("",), **checks: object
) -> Task:
    commit = repository(tmp_path / "repository", files)
    environment = Environment(image=f"repo:{tmp_path / 'repository'}", commit=commit, paths=paths)
    return Task(
        id="local",
        problem="add subtracts, and double adds two.",
        environment=environment,
        checks=Checks(**{"pass_to_pass": (), "test_files": {}, "timeout_s": 120.0, **checks}),  # type: ignore[arg-type]
        source="tests",
    )


def read_no_patch(patching: pytest.MonkeyPatch) -> None:
    """Let patches run that a scan would refuse before."""
    grade = importlib.import_module("hone.grading.grade")
    patching.setattr(grade, "scan_patch", lambda parts, task: None)


def graded(
    task: Task, patches: dict[str, str], cache: Path, venv: Path | None = None
) -> dict[str, Verdict | GraderError]:
    """Return the verdict of each patch, or why there is none."""

    async def scenario() -> dict[str, Verdict]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(venv=venv, controls=0), cache=cache)
            found: dict[str, Verdict | GraderError] = {}
            for name, patch in patches.items():
                try:
                    found[name] = await grader.grade_uncached(task, patch)
                except GraderError as error:
                    found[name] = error
            return found

    return asyncio.run(scenario())
