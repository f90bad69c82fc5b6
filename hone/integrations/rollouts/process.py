"""The rollout service of a process whose peer makes one object, or calls one function, per rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hone.config import resolve
from hone.integrations.rollouts.engine import Generate
from hone.integrations.rollouts.service import RolloutService, open_rollout_service

_opened: dict[Path, asyncio.Future[RolloutService]] = {}
_owners: set[asyncio.Task[None]] = set()


async def shared_service(recipe: Path, generate: Generate, *, processes: int = 1) -> RolloutService:
    """Return the service of `recipe` in this process, for one event loop.

    The first call opens it with its `generate`, and its error is that of every later call. It stays open for
    as long as the process lives; the next provider on the machine removes what a killed process leaves.
    """
    if recipe not in _opened:
        _opened[recipe] = asyncio.get_running_loop().create_future()
        _owners.add(asyncio.create_task(_keep_open(recipe, generate, processes, _opened[recipe])))
    return await asyncio.shield(_opened[recipe])


async def _keep_open(
    recipe: Path, generate: Generate, processes: int, opened: asyncio.Future[RolloutService]
) -> None:
    try:
        settings = await asyncio.to_thread(resolve, recipe)
        async with open_rollout_service(settings, generate, processes=processes) as service:
            opened.set_result(service)
            await asyncio.Event().wait()
    except Exception as error:
        if opened.done():
            raise
        opened.set_exception(error)


async def close_services() -> None:
    """Close the services of this process, which the current event loop has opened."""
    for owner in tuple(_owners):
        owner.cancel()
    await asyncio.gather(*_owners, return_exceptions=True)
    _owners.clear()
    _opened.clear()
