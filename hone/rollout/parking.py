"""Parking: rollouts that wait long for a reply give their sandboxes back, so that others can use the places.

    place -> start -> commands -> reply takes longer than `after_s` -> snapshot, close, place is free
                         ^                                                     |
                         +-------- place -> start from the snapshot <-- next use

A place goes to the oldest rollout that has begun, and to a new rollout only when none of these waits for one.
A rollout that waits holds no place, so rollouts never wait for each other in a circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.rollout.errors import RolloutError
from hone.rollout.settings import RolloutSettings
from hone.rollout.slots import Slots
from hone.sandbox import trees
from hone.sandbox.contract import Provider, ProviderUnavailable, SandboxError, SandboxSpec
from hone.sandbox.owners import private_directory
from hone.utils.concurrency import run_in_thread

PLACE_TIMEOUT_S = 3600.0  # of waiting for a place, until it counts as an infrastructure fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """When the rollouts of a run give their sandboxes back, and the places that they share."""

    after_s: float  # of waiting for a reply
    folder: Path  # of the snapshots, on this machine; no other user can read it
    places: Slots  # one for each sandbox


@asynccontextmanager
async def open_parking(
    settings: RolloutSettings, provider: Provider, state_dir: Path | None
) -> AsyncGenerator[Parking | None]:
    """Yield what rollouts need to park; None without `park_after_s`.

    `state_dir`: as `SandboxSettings.state_dir`. Raises RolloutError if a sandbox cannot be restored here.
    """
    if settings.park_after_s is None:
        yield None
        return
    with private_directory(state_dir) as folder:
        await _check_snapshots(provider, folder / "check")
        yield Parking(after_s=settings.park_after_s, folder=folder, places=Slots(settings.sandboxes_at_once))


async def _check_snapshots(provider: Provider, target: Path) -> None:
    try:
        async with await provider.start(SandboxSpec()) as sandbox:
            await sandbox.snapshot(target, whole=True)
        async with await provider.start(SandboxSpec(snapshot=target)):
            await run_in_thread(trees.remove, target)
    except (NotImplementedError, SandboxError, OSError) as error:
        raise RolloutError(
            f"rollout.park_after_s restores sandboxes from snapshots, which fails here ({error}): remove it, "
            'or use sandbox.provider = "namespaces" with sandbox.state_dir on a local disk'
        ) from error


class Place:
    """The right of one rollout to a sandbox, the agent's or the grader's. Without parking, no limit."""

    def __init__(self, parking: Parking | None, since: float) -> None:
        """`since`: when the rollout was queued; of two, the earlier one gets a place first."""
        self._slots = None if parking is None else parking.places
        self._since = since
        self._begun = self._held = False

    async def take(self) -> None:
        """Wait for a place, unless it is held. Raises ProviderUnavailable after PLACE_TIMEOUT_S."""
        if self._slots is None or self._held:
            return
        try:
            async with asyncio.timeout(PLACE_TIMEOUT_S):
                await self._slots.acquire((not self._begun, self._since))
        except TimeoutError:
            raise ProviderUnavailable(
                f"no sandbox became free within {PLACE_TIMEOUT_S:.0f} s", retryable=True
            ) from None
        self._begun = self._held = True

    def release(self) -> None:
        """Give the place to the next rollout; no error when it is not held."""
        if self._slots is not None and self._held:
            self._held = False
            self._slots.release()
