"""Environments for TRL's plain `GRPOTrainer`: a sandbox per rollout, a bash tool, Hone's verdict as reward.

    with open_environments(settings) as environments:
        GRPOTrainer(model, train_dataset=environments.dataset(), environment_factory=environments, args=args)

TRL samples and builds the tokens itself, so they are as exact as TRL's own; `HoneRollouts` is the exact way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hone.agents.bash import run_command
from hone.config import ConfigError, RunSettings
from hone.grading.assess import check_gradeable
from hone.integrations.loop_thread import LoopThread
from hone.integrations.task_sandbox import Graded, grade_sandbox, start_task
from hone.launch.runtime import Runtime, open_runtime
from hone.rollout.rewards import reward_of
from hone.sandbox import Sandbox, SandboxError, SandboxSpec
from hone.tasks.errors import TaskError
from hone.tasks.sources import load_splits
from hone.tasks.workspace import GIT_ENV
from hone.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)
T = TypeVar("T")
TASK = "task_id"  # the dataset's column
COMMAND_TIMEOUT_S = 60.0
LOST = "The sandbox is gone; nothing more can be run."


class Environments:
    """Makes one environment per rollout; made by `open_environments`."""

    def __init__(self, settings: RunSettings, thread: LoopThread) -> None:
        splits = load_splits(settings.tasks)
        check_gradeable(splits.train)
        self.settings = settings
        self.closing = asyncio.Event()
        self.tasks: Mapping[str, Task] = {task.id: task for task in splits.train}
        self.runtime: Runtime  # in the loop of the thread
        self.sandboxes: set[Sandbox] = set()  # open ones
        self._thread = thread

    def __call__(self) -> BashEnvironment:
        return BashEnvironment(self)

    def dataset(self) -> Dataset:
        """Return the training tasks, for `train_dataset`."""
        from datasets import Dataset

        prompt = [{"role": "user", "content": ""}]
        return Dataset.from_list([{"prompt": prompt, TASK: task_id} for task_id in self.tasks])

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` in the thread that owns the sandboxes."""
        return await self._thread.run(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until `work` has ended in the thread that owns the sandboxes."""
        return self._thread.start(work).result()

    async def serve(self, opened: Future[None]) -> None:
        """Hold provider and grader open until `closing` is set; then close every sandbox."""
        try:
            async with open_runtime(self.settings) as self.runtime:
                opened.set_result(None)
                await self.closing.wait()
                for sandbox in list(self.sandboxes):
                    await sandbox.close()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def close(self) -> None:
        """Let `serve` end."""
        self.closing.set()


class BashEnvironment:
    """One rollout after the other: `reset` starts a sandbox, `get_reward` grades and closes it.

    TRL offers every public method but these two to the policy as a tool.
    """

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None

    def reset(self, **row: Any) -> str:
        """Start the sandbox of the row's task; return its statement. Raises ConfigError for other tasks."""
        tasks = self._environments.tasks
        if row.get(TASK) not in tasks:
            raise ConfigError(
                f"the dataset's column {TASK} holds {row.get(TASK)!r}: use `environments.dataset()`"
            )
        self._task = tasks[row[TASK]]
        self._environments.call(self._restart(self._task))
        return self._task.problem

    async def bash(self, command: str) -> str:
        """Run a bash command in the repository and return its output.

        Args:
            command: The bash command to run.
        """
        if self._sandbox is None:
            return LOST
        try:
            result = await self._environments.run(
                run_command(
                    self._sandbox,
                    command,
                    interpreter=("bash", "-c"),
                    timeout_s=self._command_timeout_s(),
                    cwd=None,
                    env={},
                )
            )
        except SandboxError as error:
            return f"{LOST} ({error})"
        if result.exit_code == 0:
            return result.output
        return f"{result.output}\n({result.exception or f'exit code {result.exit_code}'})"

    async def get_reward(self) -> float | None:
        """Return the reward; None, which TRL leaves out of the baseline, for an infrastructure fault."""
        assert self._task is not None, "TRL resets an environment before it asks for a reward"
        if self._sandbox is None:
            return None
        graded = await self._environments.run(self._grade(self._sandbox, self._task))
        return reward_of(graded.outcome, graded.verdict, self._environments.settings.rollout.rewards)

    def _command_timeout_s(self) -> float:
        return getattr(self._environments.settings.agent, "command_timeout_s", None) or COMMAND_TIMEOUT_S

    async def _restart(self, task: Task) -> None:
        environments, settings = self._environments, self._environments.settings
        await self._close()
        spec = SandboxSpec(env=GIT_ENV, limits=settings.sandbox.limits())
        try:
            sandbox = await start_task(task, environments.runtime.provider, spec, settings.grading)
        except (SandboxError, TaskError) as error:
            log.warning("task %s: no sandbox, so its rollout has no reward: %s", task.id, error)
            return
        self._sandbox = sandbox
        environments.sandboxes.add(sandbox)

    async def _grade(self, sandbox: Sandbox, task: Task) -> Graded:
        try:
            return await grade_sandbox(sandbox, task, self._environments.runtime.grader)
        finally:
            await self._close()

    async def _close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            self._environments.sandboxes.discard(sandbox)
            await sandbox.close()


@contextmanager
def open_environments(settings: RunSettings) -> Generator[Environments]:
    """Open provider and grader; close every sandbox at the end. Raises TaskError, ProviderUnavailable."""
    thread = LoopThread("hone-environments")
    environments = Environments(settings, thread)
    opened: Future[None] = Future()
    serving = thread.start(environments.serve(opened))
    try:
        opened.result()
        yield environments
    finally:
        thread.start(environments.close())
        serving.result()
        thread.stop()
