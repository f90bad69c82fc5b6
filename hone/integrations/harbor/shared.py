"""One open provider of sandboxes for all trials of a job; the end of the event loop closes it."""

from __future__ import annotations

import asyncio
import weakref

from hone.sandbox import Provider, make_provider
from hone.sandbox.settings import SandboxSettings

_Opened = dict[str, tuple["asyncio.Future[Provider]", "asyncio.Task[None]"]]
_opened: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = weakref.WeakKeyDictionary()


async def shared_provider(settings: SandboxSettings) -> Provider:
    """Return the provider of these settings, opened on first use. Raises ProviderUnavailable.

    A task of its own holds it open. `asyncio.run` cancels that task at its end, which closes every sandbox.
    """
    loop, key = asyncio.get_running_loop(), settings.model_dump_json()
    opened = _opened.setdefault(loop, {})
    if key not in opened or opened[key][1].done():
        ready: asyncio.Future[Provider] = loop.create_future()
        opened[key] = ready, loop.create_task(_hold(settings, ready))
    return await asyncio.shield(opened[key][0])


async def _hold(settings: SandboxSettings, ready: asyncio.Future[Provider]) -> None:
    try:
        async with make_provider(settings) as provider:
            ready.set_result(provider)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        ready.cancel()
        raise
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)
