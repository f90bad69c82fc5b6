"""One sandbox's container, from its creation to its removal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, SandboxLost
from hone.sandbox.docker.engine import Engine
from hone.sandbox.init.channel import Channel


class Container:
    """Creation starts in the constructor; `remove` works at any stage."""

    def __init__(
        self, engine: Engine, name: str, config: Mapping[str, Any], resources: AsyncExitStack
    ) -> None:
        self.name = name
        self._engine = engine
        self._resources = resources  # of the host, closed after the container is removed
        self._creating = asyncio.create_task(engine.create(name, config))
        self._removing: asyncio.Task[None] | None = None

    async def boot(self) -> Channel:
        """Start it and return its channel once process 1 is ready. Raises ProviderUnavailable."""
        await asyncio.shield(self._creating)  # a cancelled request may still create a container
        channel = Channel()
        stream = await self._engine.attach(self.name, channel)
        try:
            await self._engine.start(self.name)
            await channel.ready
        except SandboxLost as lost:
            errors = stream.errors.decode("utf-8", "replace").strip()
            raise ProviderUnavailable(
                f"a sandbox ended before it was ready: {errors or lost}", retryable=not errors
            ) from None
        except BaseException:
            stream.abort()
            raise
        return channel

    async def remove(self) -> None:
        """Kill and remove it. Safe to call again, also concurrently; continues when a caller is cancelled."""
        if self._removing is None or (self._removing.done() and self._removing.exception()):
            self._removing = asyncio.create_task(self._remove())
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        await asyncio.wait([self._creating])
        self._creating.exception()  # mark it as retrieved: `boot` has raised it
        await self._engine.remove(self.name)
        await self._resources.aclose()
