"""The sandbox of one rollout from its start to its end, with its place; see `hone.rollout.parking`."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from hone.agents.contract import AgentRun
from hone.rollout.busy import BusyShares
from hone.rollout.parking import Parking, Place
from hone.rollout.time_limit import TimeLimit
from hone.sandbox import trees
from hone.sandbox.contract import Provider, ProviderUnavailable, Sandbox, SandboxError
from hone.utils.concurrency import finish, run_in_thread

CLOSE_TIMEOUT_S = 30.0
RESTORE_TIMEOUT_S = 3600.0  # providers bound their own work; this only stops a defect from blocking a run


class NotRestored(ProviderUnavailable):
    """A parked sandbox cannot be restored: an infrastructure fault."""


class RolloutSandbox:
    """Gives a rollout's sandbox to each use, restored if it is parked.

    Invariants: what a command sees does not tell whether the sandbox was parked; a fault while parking keeps
    the sandbox; after `close` neither sandbox nor snapshot is left.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        place: Place,
        *,
        provider: Provider,
        parking: Parking | None,
        run: AgentRun,
        timings: dict[str, float],
        busy: BusyShares,
    ) -> None:
        """
        Args:
            place: held by the caller, who releases it after `close`.
            parking: None: the sandbox is never parked.
            timings: `park` and `restore` are added to.
        """
        self.time_limit: TimeLimit | None = None  # of the agent, while it runs
        self.first = sandbox
        self._sandbox = sandbox
        self._place = place
        self._provider = provider
        self._parking = parking
        self._run = run
        self._timings = timings
        self._busy = busy
        self._snapshot: Path | None = None  # of a parked sandbox
        self._parked = ExitStack()  # open while it is parked
        self._users = 0
        self._changing = asyncio.Lock()  # held while the sandbox is parked, restored or closed

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Sandbox]:
        """Yield the sandbox, which is not parked meanwhile. Raises NotRestored."""
        async with self._changing:
            if self._snapshot is not None:
                await self._restore(self._snapshot)
            self._users += 1
        try:
            yield self._sandbox
        finally:
            self._users -= 1

    @asynccontextmanager
    async def during_reply(self) -> AsyncGenerator[None]:
        """Park the sandbox if a reply takes long; at its end, wait for a parking that has begun."""
        if self._parking is None:
            yield
            return
        timer = asyncio.create_task(self._park_later(self._parking))
        try:
            yield
        finally:
            timer.cancel()
            with self._waiting():
                await asyncio.wait({timer})
            if not timer.cancelled():
                timer.result()  # raises what nothing expects

    async def close(self) -> None:
        """Close the sandbox and remove its snapshot.

        A sandbox that cannot be closed now is closed by the provider or the next reconcile; the notes of the
        run have the reason.
        """
        async with self._changing:
            if self._snapshot is None:
                await close_sandbox(self._sandbox, self._run)
                return
            try:
                await self._remove_snapshot(self._snapshot)
            except OSError as error:
                _note_close_error(self._run, error)

    # --- parking

    async def _park_later(self, parking: Parking) -> None:
        await asyncio.sleep(parking.after_s)
        async with self._changing:
            if self._users == 0 and self._snapshot is None:
                await self._park(parking.folder / secrets.token_hex(8))

    async def _park(self, target: Path) -> None:
        """Cancellation before the sandbox is closed keeps it; later, it waits for the end."""
        with self._timed("park"):
            try:
                await self._sandbox.snapshot(target, whole=True)
            except (SandboxError, OSError) as error:
                self._run.notes["not_parked"] = str(error)
                return
            await finish(self._give_back(target))

    async def _give_back(self, snapshot: Path) -> None:
        self._snapshot = snapshot
        self._parked.enter_context(self._busy.parked.use())
        self._run.notes["parked"] = self._run.notes.get("parked", 0) + 1
        await close_sandbox(self._sandbox, self._run)
        self._place.release()

    async def _restore(self, snapshot: Path) -> None:
        with self._waiting():
            try:
                await self._place.take()
                with self._busy.sandbox.use():
                    async with asyncio.timeout(RESTORE_TIMEOUT_S):
                        spec = dataclasses.replace(self._sandbox.spec, snapshot=snapshot)
                        self._sandbox = await self._provider.start(spec)
                await self._remove_snapshot(snapshot)
            except TimeoutError:
                raise NotRestored(
                    f"the parked sandbox was not restored within {RESTORE_TIMEOUT_S:.0f} s"
                ) from None
            except (SandboxError, OSError, ValueError) as error:
                raise NotRestored(f"the parked sandbox cannot be restored: {error}") from error

    async def _remove_snapshot(self, snapshot: Path) -> None:
        self._snapshot = None
        self._parked.close()
        await run_in_thread(trees.remove, snapshot)

    # --- time

    @contextmanager
    def _waiting(self) -> Generator[None]:
        """Let the time that the agent waits for its sandbox count towards no limit."""
        started = time.monotonic()
        with ExitStack() as stack:
            if self.time_limit is not None:
                stack.enter_context(self.time_limit.extended())
            try:
                yield
            finally:
                self._run.waited_s += time.monotonic() - started
                self._add("restore", started)

    @contextmanager
    def _timed(self, stage: str) -> Generator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._add(stage, started)

    def _add(self, stage: str, started: float) -> None:
        self._timings[stage] = self._timings.get(stage, 0.0) + time.monotonic() - started


async def close_sandbox(sandbox: Sandbox, run: AgentRun) -> None:
    """Close a sandbox; one that cannot be closed now is closed by the provider or the next reconcile."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await sandbox.close()
    except (SandboxError, TimeoutError) as error:
        _note_close_error(run, error)


def _note_close_error(run: AgentRun, error: Exception) -> None:
    run.notes["close_error"] = f"{type(error).__name__}: {error}"
