"""A rollout worker and a weight transfer for TRL's `AsyncGRPOTrainer`, in a thread of the trainer's process.

    TRL: init_weight_transfer -> engine and sandboxes are opened
         send_weights         -> the engine samples with them, as the next version
         start                -> groups of rollouts in the recipe's order; their rows into rollout_buffer
         stop, destroy        -> rollouts end, everything is closed

Invariant: at most `groups_per_step` x (`rollout.max_staleness` + 1) groups are under way or in the buffer, so
no row is too old when TRL takes it, if a step of TRL takes `groups_per_step` groups.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from hone.config import RunSettings
from hone.integrations.peer import require
from hone.integrations.rollouts.service import (
    RolloutService,
    open_rollout_service,
    require_plain_rollouts,
)
from hone.integrations.trl.buffer import RowBuffer
from hone.integrations.trl.rows import Row, group_rows, require_group_advantages
from hone.integrations.trl.weights import load_weights
from hone.launch.policy import (
    Policy,
    load_policy,
    open_engine,
    require_exact_sampling,
    require_tokens,
)
from hone.launch.rundir import claim
from hone.policy.engine import Engine
from hone.rollout.errors import RolloutError
from hone.rollout.faults import FaultBudget
from hone.rollout.groups import seed_of
from hone.rollout.order import TaskOrder
from hone.rollout.rewards import is_infrastructure_fault
from hone.types import Trajectory
from hone.utils.concurrency import cancel_all, task_group

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
CLOSE_TIMEOUT_S = 60.0
WORK_TIMEOUT_S = 3600.0  # opening and loading have limits of their own; this one stops a defect from blocking


class HoneRollouts:
    """Pass one as `rollout_worker` and as `weight_transfer`.

    Example:
        rollouts = HoneRollouts(resolve("debugger-8b", command="train"))
        AsyncGRPOTrainer(model, args=args, rollout_worker=rollouts, weight_transfer=rollouts)
    """

    def __init__(self, settings: RunSettings, *, first_group: int = 0) -> None:
        """`first_group`: position in the order of tasks, for a training that TRL resumes.

        Raises ConfigError.
        """
        require_group_advantages(settings.train.algorithm)
        require_tokens(settings)
        require_plain_rollouts(settings)
        require_exact_sampling(settings)
        self._new_sample = _rollout_sample_class()
        self._settings = settings
        self._first = first_group
        self.rollout_buffer = RowBuffer(self._on_group_taken)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._version = 0
        self._error: BaseException | None = None
        self._active = time.monotonic()  # when the last rollout ended, or weights arrived
        self._opened = threading.Event()
        self._thread: threading.Thread | None = None
        # set in the thread
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        self._started: asyncio.Event
        self._room: asyncio.Semaphore  # for groups
        self._engine: Engine
        self._policy: Policy

    def init_weight_transfer(self) -> None:
        """Open engine, sandboxes and graders. Raises their errors, and RolloutError."""
        self._thread = threading.Thread(target=self._run, name="hone-rollouts", daemon=True)
        self._thread.start()
        if not self._opened.wait(WORK_TIMEOUT_S):
            raise RolloutError(f"engine and sandboxes were not open within {WORK_TIMEOUT_S:g} s")
        self._raise_error()

    def pause(self) -> None:
        """Do nothing: loading weights pauses the engine."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Return once the engine samples with the weights. Raises EngineError, RolloutError."""
        version = self._version + 1
        self._call(
            load_weights(
                self._engine,
                self._policy,
                iterator,
                version,
                root=self._settings.run_dir / "weights",
                partial=self._settings.rollout.partial,
            )
        )
        self._version = version
        self._active = time.monotonic()

    def resume(self) -> None:
        """Do nothing, see `pause`."""

    def start(self) -> None:
        """Begin to collect groups."""
        self._raise_error()
        self._loop.call_soon_threadsafe(self._started.set)

    def update_model_version(self, model_version: int) -> None:
        """Check that TRL counts the versions as this object does. Raises RuntimeError."""
        if model_version != self._version:
            raise RuntimeError(
                f"TRL's model version is {model_version}, and {self._version} sets of weights arrived: pass "
                "the same object as rollout_worker and as weight_transfer"
            )

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error that ended the collection, or RolloutError without progress for `stale_after_s`."""
        self._raise_error()
        if time.monotonic() - self._active > stale_after_s:
            raise RolloutError(
                f"no rollout has ended for {stale_after_s:g} s: raise heartbeat_stale_after_s of the trainer "
                "above the recipe's rollout.time_limit_s, or see the engine's log"
            )

    def stop(self) -> None:
        """End the rollouts under way and close everything. Idempotent."""
        if self._thread is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise RolloutError(
                f"rollouts did not end within {CLOSE_TIMEOUT_S:g} s: end this process, and the next provider "
                "on this machine removes what they leave"
            )

    def destroy(self) -> None:
        self.stop()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        self._raise_error()
        called = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return called.result(WORK_TIMEOUT_S)
        except TimeoutError:
            if called.done():  # the error is the work's own
                raise
            called.cancel()
            raise RolloutError(f"the engine did not take the weights within {WORK_TIMEOUT_S:g} s") from None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._opened.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing, self._started = asyncio.Event(), asyncio.Event()
        settings = self._settings
        self._room = asyncio.Semaphore(settings.groups_per_step * (settings.rollout.max_staleness + 1))
        claim(settings)
        self._policy = await asyncio.to_thread(load_policy, settings)
        async with (
            open_engine(self._policy, settings) as self._engine,
            open_rollout_service(settings, self._engine.generate) as service,
        ):
            self._opened.set()
            collecting = asyncio.create_task(self._collect(service))
            closing = asyncio.create_task(self._closing.wait())
            await asyncio.wait([collecting, closing], return_when=asyncio.FIRST_COMPLETED)
            failed = collecting.done()
            await cancel_all([collecting, closing])
            if failed:
                await collecting

    async def _collect(self, service: RolloutService) -> None:
        """Collect group after group; only an error ends it."""
        await self._started.wait()
        settings = self._settings
        order = TaskOrder(service.splits.train, seed=settings.seed, groups_per_step=settings.groups_per_step)
        budget = FaultBudget(settings.rollout.fault_budget)
        position = self._first
        async with task_group() as groups:
            while True:
                await self._room.acquire()
                groups.create_task(self._group(service, order, position, budget))
                position += 1

    async def _group(
        self, service: RolloutService, order: TaskOrder, position: int, budget: FaultBudget
    ) -> None:
        task, size = order.task(position), self._settings.rollout.group_size
        async with task_group() as rollouts:
            running = [
                rollouts.create_task(
                    service.rollout(
                        task,
                        group_id=f"p{position:06d}",
                        index=index,
                        seed=seed_of(self._settings.seed, position, index),
                    )
                )
                for index in range(size)
            ]
            for each in running:
                each.add_done_callback(self._on_rollout)
        group = [each.result() for each in running]
        rows = group_rows(
            group, self._settings.train.algorithm, group_id=position, is_masked=service.is_masked
        )
        self.metrics_queue.put(_metrics(group))
        if rows:
            self.rollout_buffer.put_group([self._sample(row) for row in rows])
        else:
            self._room.release()
        if all(is_infrastructure_fault(each.outcome) for each in group):
            budget.failed(group[0].error or str(group[0].outcome))
        else:
            budget.succeeded()

    def _sample(self, row: Row) -> Any:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        return self._new_sample(prompt=[], completion=[], enqueued_at=time.time(), **values)

    def _on_rollout(self, _: object) -> None:
        self._active = time.monotonic()

    def _on_group_taken(self, _: int) -> None:
        """Called in TRL's thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._room.release)


def _rollout_sample_class() -> Callable[..., Any]:
    """Return TRL's class of a row. Raises PeerMissing."""
    require("trl", ">=1.16", "pip install 'trl>=1.16'")
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    return RolloutSample


def _metrics(group: Sequence[Trajectory]) -> dict[str, float]:
    faults = sum(is_infrastructure_fault(each.outcome) for each in group)
    return {"rollout/groups": 1.0, "rollout/infrastructure_faults": float(faults)}
