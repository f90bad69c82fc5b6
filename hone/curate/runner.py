"""Runs tests of commits and proves tasks in fresh sandboxes, a bounded number at once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hone.curate.controls import find_controls
from hone.curate.journal import Journal
from hone.curate.record import with_proof
from hone.curate.validate import validate
from hone.grading.grade import Grader
from hone.grading.run import TestRun
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import Limits, Provider
from hone.tasks.bundles import OF_COMMIT, SUFFIX
from hone.tasks.errors import TaskError
from hone.tasks.local import with_lock
from hone.tasks.python import Locked
from hone.tasks.repository import Repository
from hone.types import Checks, Control, Environment, Task

REWRITE = ("--assert=rewrite",)  # pytest arguments: failing assertions show their values
_NO_OWNER = "local"  # of a repository without a remote


@dataclass(slots=True, kw_only=True)
class Runner:
    """Test runs and proofs, `settings.concurrency` at once."""

    provider: Provider
    cache: Path  # of the tasks' repositories
    settings: GradingSettings
    limits: Limits
    _slots: asyncio.Semaphore = field(init=False)
    _grader: Grader = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.settings.concurrency)
        self._grader = Grader(self.provider, self.settings, cache=self.cache, limits=self.limits)

    async def run(self, task: Task, files: Sequence[str], patch: str = "") -> TestRun:
        """Run test files of a task after a trusted patch. Raises GraderError."""
        async with self._slots:
            return await self._grader.run_suite(task, patch, files)

    async def find_controls(self, task: Task, repeats: int) -> tuple[Control, ...]:
        """Return the controls of a task's tests; see `hone.curate.controls`. Raises GraderError."""
        async with self._slots:
            return await find_controls(task, self._grader, repeats=repeats)

    async def prove(self, task: Task, repeats: int, *, controls: bool = True) -> tuple[Task | None, str]:
        """Return the task with its proof, or None and the reason why validation refuses it.

        Args:
            controls: whether to find the task's controls.
        """
        cache = self.cache / f"proof-{task.id}"
        grader = Grader(self.provider, self.settings, cache=cache, limits=self.limits)
        try:
            async with self._slots:
                report = await validate([task], grader, Journal(None, {}), repeats=repeats, controls=controls)
        finally:  # hundreds of repositories would fill the disk
            await asyncio.to_thread(shutil.rmtree, cache, ignore_errors=True)
        proven = next(with_proof([task], report), None)
        return proven, report.refused.get(task.id, "")


def trial_task(
    environment: Environment,
    test_files: Mapping[str, str],
    *,
    timeout_s: float,
    test_patch: str = "",
    command: tuple[str, ...] = (),
) -> Task:
    """Return a task without expected tests, to run test files in an environment.

    Args:
        test_files: path -> text, written over the tree before the run.
        command: extra pytest arguments.
    """
    checks = Checks(
        fail_to_pass=(),
        pass_to_pass=(),
        test_files=test_files,
        gold_patch="",
        test_patch=test_patch,
        timeout_s=timeout_s,
        command=command,
    )
    return Task(id="trial", problem="", environment=environment, checks=checks, source="trial")


def last_line(log: str) -> str:
    """Return the last error that pytest shows in a log, otherwise its last line."""
    lines = [line.strip(" =") for line in log.splitlines() if line.strip(" =")]
    errors = [line for line in lines if line.startswith("E ")]
    return (errors or lines or ["it printed nothing"])[-1][:200]


def repository_name(repository: Repository) -> str:
    """Return "owner/name" of the remote or of a folder or bundle `owner__name`, otherwise "local/folder"."""
    url = ""
    if not repository.path.is_file():  # the remote of an unpacked bundle is the bundle
        with suppress(TaskError):  # git fails so when there is no remote
            url = repository.git("config", "--get", "remote.origin.url").decode("utf-8", "replace").strip()
    parts = [part for part in url.removesuffix("/").removesuffix(".git").replace(":", "/").split("/") if part]
    if len(parts) >= 2:
        return f"{parts[-2]}/{parts[-1]}"
    path = repository.path.resolve()
    plain = OF_COMMIT.sub("", path.name)
    stem = plain.removesuffix(".git").removesuffix(SUFFIX) or path.parent.name
    owner, separator, name = stem.partition("__")
    return f"{owner}/{name}" if separator and owner and name else f"{_NO_OWNER}/{stem}"


def commit_environment(repository: Repository, commit: str, locked: Locked) -> Environment:
    """Return the environment of a commit with its locked requirements and the files that its build writes."""
    environment = Environment(
        image=f"repo:{repository.path.resolve()}", repo=repository_name(repository), commit=commit
    )
    return with_lock(environment, locked)
