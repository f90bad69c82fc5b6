"""One sandbox's container, from the request that creates it to the removal of its last trace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from hone.sandbox.contract import ProviderUnavailable, SandboxLost
from hone.sandbox.docker.engine import Engine
from hone.sandbox.init.channel import Channel


class Container:
    """Its creation begins at once; `remove` ends it at whatever stage it is."""

    def __init__(
        self, engine: Engine, name: str, config: Mapping[str, Any], resources: AsyncExitStack
    ) -> None:
        self.name = name
        self._engine = engine
        self._resources = resources  # of the host; closed once the container is gone
        self._creating = asyncio.create_task(engine.create(name, config))
        self._removing: asyncio.Task[None] | None = None

    async def boot(self) -> Channel:
        """Start it; its channel, once the supervisor answers. Raises ProviderUnavailable."""
        await asyncio.shield(self._creating)  # a request given up may make a container all the same
        channel = Channel()
        stream = await self._engine.attach(self.name, channel)
        try:
            await self._engine.start(self.name)
            await channel.ready
        except SandboxLost as lost:
            said = stream.errors.decode("utf-8", "replace").strip()
            raise ProviderUnavailable(
                f"a sandbox ended before it was ready: {said or lost}", retryable=not said
            ) from None
        except BaseException:
            stream.abort()
            raise
        return channel

    async def remove(self) -> None:
        """Kill and remove it. Safe to call again, also at once; goes on when a caller is cancelled."""
        if self._removing is None or (self._removing.done() and self._removing.exception()):
            self._removing = asyncio.create_task(self._remove())
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        await asyncio.wait([self._creating])
        self._creating.exception()  # whoever created it was told, or is gone
        await self._engine.remove(self.name)
        await self._resources.aclose()
