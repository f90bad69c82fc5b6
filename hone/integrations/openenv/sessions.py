"""One rollout per session, on the components of a recipe that the factory opens once.

factory = HoneSessionFactory("recipe.toml")
session = factory.create("task-id", seed=7)
session.wait_for_completion()
trace, result = session.fetch_training_trace(), session.verify([])
session.close()
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import functools
import secrets
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from openenv.core.harness import ResourceSession, ResourceSessionFactory, TrainingTrace, VerifyResult
from openenv.core.harness.capture.upstream import training_sampling

from hone.config import RunSettings, resolve
from hone.grading.assess import check_gradeable
from hone.integrations.loop_thread import LoopThread
from hone.integrations.rollouts.service import prepare_and_run, require_one_reward
from hone.integrations.traces import engine_calls
from hone.launch.policy import open_chats, require_exact_sampling, require_tokens
from hone.launch.runtime import open_context, open_runtime
from hone.outcomes import Outcome
from hone.rollout.episode import RolloutContext, retry_infrastructure_faults
from hone.rollout.rewards import is_masked
from hone.tasks.sources import load_splits
from hone.types import Task, Trajectory
from hone.utils.concurrency import cancel_all


class HoneSession(ResourceSession):
    """A rollout that runs by itself; see `openenv.core.harness.TrainableSession`."""

    def __init__(self, task: Task, rollout: Future[Trajectory], settings: RunSettings) -> None:
        self._task, self._rollout, self._settings = task, rollout, settings

    def initial_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._task.problem}]

    def list_tools(self) -> list[Any]:
        """Return no tools: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        raise KeyError(f"the agent of a session calls its tools itself, not {name!r} here")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Return 0 when the rollout has ended; its own limits bound it. Raises TimeoutError."""
        self._rollout.result(timeout_s)
        return 0

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the engine's calls; none of an unfinished rollout or after an infrastructure fault."""
        trajectory = self._ended()
        if trajectory is None:
            return TrainingTrace(turns=[])
        masked = is_masked(trajectory, self._settings.rollout)
        return TrainingTrace.model_validate({"turns": engine_calls(trajectory, masked=masked)})

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        """Return the reward of Hone's grading; None for an infrastructure fault and an unfinished rollout."""
        trajectory = self._ended()
        if trajectory is None:
            return VerifyResult(env_reward=None, metrics={"outcome": str(Outcome.CANCELLED)})
        metrics: dict[str, Any] = {"outcome": str(trajectory.outcome), "turns": len(trajectory.turns)}
        if trajectory.verdict is not None:
            metrics["score"] = trajectory.verdict.score
        return VerifyResult(
            env_reward=trajectory.reward,
            done=True,
            metrics=metrics,
            artifacts={"patch": trajectory.patch, "error": trajectory.error},
        )

    def close(self) -> None:
        """Cancel the rollout if it runs; its sandbox is closed. Safe to call twice."""
        self._rollout.cancel()

    def _ended(self) -> Trajectory | None:
        ended = self._rollout.done() and not self._rollout.cancelled()
        return self._rollout.result() if ended else None


class HoneSessionFactory(ResourceSessionFactory[HoneSession]):
    """Opens provider, grader, engine and agent of a recipe.

    Args:
        recipe: its engine is the server that the trainer updates: `kind = "vllm"` with its address in `urls`.
        sampling: the trainer's, in place of the recipe's; it may only set the temperature.
        sets: settings on top of the recipe, as in `--set`.
    Raises:
        HoneError: the recipe cannot be used, or a component cannot be opened.
    """

    def __init__(
        self, recipe: str | Path, *, sampling: dict[str, Any] | None = None, sets: Sequence[str] = ()
    ) -> None:
        self._settings = _sampled(resolve(recipe, sets), sampling)
        require_tokens(self._settings)
        require_exact_sampling(self._settings)
        require_one_reward(self._settings)
        self._tasks = {
            task.id: task for _, tasks in load_splits(self._settings.tasks).named() for task in tasks
        }
        check_gradeable(list(self._tasks.values()))
        self._slots = asyncio.Semaphore(self._settings.rollout.concurrent_episodes)
        self._running: set[asyncio.Task[Any]] = set()
        self._stack = AsyncExitStack()
        self._thread = LoopThread("hone-openenv")
        try:
            self._context = self._thread.start(self._open()).result()
        except BaseException:
            self.close()
            raise

    def prompts(self) -> list[list[dict[str, str]]]:
        """Return a data set's column `prompt`: for each task, one message with its id."""
        return [[{"role": "user", "content": name}] for name in self._tasks]

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> HoneSession:
        """Start a rollout. Raises KeyError for an unknown task.

        Args:
            task: the id of a task, or messages of which the last one is it.
            seed: the same in a group of rollouts; each samples by its episode's id.
        """
        name = task if isinstance(task, str) else task[-1]["content"]
        if name not in self._tasks:
            raise KeyError(f"the recipe has no task {name!r}")
        rollout_id = episode_id or secrets.token_hex(8)
        work = self._roll_out(self._tasks[name], rollout_id, group_id=f"{name}-{seed}")
        return HoneSession(self._tasks[name], self._thread.start(work), self._settings)

    def close(self) -> None:
        """End all rollouts and close every component."""
        self._thread.start(self._close()).result()
        self._thread.stop()

    async def _open(self) -> RolloutContext:
        settings, new_chat = self._settings, None
        runtime = await self._stack.enter_async_context(open_runtime(settings))
        if settings.agent.uses_policy:
            new_chats = await self._stack.enter_async_context(open_chats(settings))
            new_chat = new_chats(settings)
        return await self._stack.enter_async_context(
            open_context(runtime, settings, settings.agent, new_chat)
        )

    async def _close(self) -> None:
        await cancel_all(self._running)
        await self._stack.aclose()

    async def _roll_out(self, task: Task, rollout_id: str, *, group_id: str) -> Trajectory:
        running = asyncio.current_task()
        assert running is not None
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        attempt = functools.partial(
            prepare_and_run,
            self._context,
            task,
            rollout_id=rollout_id,
            group_id=group_id,
            seed=zlib.crc32(rollout_id.encode()),
        )
        async with self._slots:
            return await retry_infrastructure_faults(attempt, self._settings.rollout)


def _sampled(settings: RunSettings, sampling: dict[str, Any] | None) -> RunSettings:
    """Raises ValueError for a sampling that changes more than the temperature."""
    if sampling is None:
        return settings
    temperature = training_sampling(sampling)["temperature"]
    neutral = {"temperature": temperature, "top_p": 1.0, "top_k": 0}
    return settings.model_copy(update={"sampling": settings.sampling.model_copy(update=neutral)})
