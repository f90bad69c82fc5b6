"""One provider of sandboxes for all trials of a job that run at a time; the last one closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hone.sandbox import Provider, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.utils.concurrency import finish


@dataclass(slots=True)
class _Open:
    provider: Provider
    users: int = 1


@dataclass(slots=True)
class SharedProviders:
    """Open providers by their settings. All calls must come from one event loop."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: dict[str, _Open] = field(default_factory=dict[str, _Open])

    async def take(self, settings: SandboxSettings) -> Provider:
        """Return an open provider. Every call needs one of `release`. Raises ProviderUnavailable."""
        key = settings.model_dump_json()
        async with self.lock:
            if (found := self.opened.get(key)) is not None:
                found.users += 1
                return found.provider
            provider = make_provider(settings)
            await provider.__aenter__()
            self.opened[key] = _Open(provider)
            return provider

    async def release(self, settings: SandboxSettings) -> None:
        """Give a provider back; the last user closes it, also when cancelled."""
        await finish(self._release(settings.model_dump_json()))

    async def _release(self, key: str) -> None:
        async with self.lock:
            found = self.opened[key]
            found.users -= 1
            if found.users == 0:
                del self.opened[key]
                await found.provider.__aexit__(None, None, None)

    @asynccontextmanager
    async def use(self, settings: SandboxSettings) -> AsyncGenerator[Provider]:
        """Yield an open provider."""
        provider = await self.take(settings)
        try:
            yield provider
        finally:
            await self.release(settings)


_of_loop: dict[int, SharedProviders] = {}


def providers() -> SharedProviders:
    """Return the open providers of the running event loop."""
    return _of_loop.setdefault(id(asyncio.get_running_loop()), SharedProviders())
