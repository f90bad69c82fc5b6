"""The process of an inference server: an external one at a URL, or one that the run starts."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ServerProcess(Protocol):
    """Starts and stops one server."""

    name: str

    async def start(self) -> str:
        """Start the server unless it runs; return its URL. Raises EngineError."""
        ...

    async def ended(self) -> str:
        """Wait for the server's process to exit; return the reason as far as it is known."""
        ...

    async def stop(self) -> None: ...


class ExternalServer:
    """A server that the run does not manage. `ended` never returns; health checks detect its end."""

    def __init__(self, url: str) -> None:
        self.name = url

    async def start(self) -> str:
        return self.name

    async def ended(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets this event")

    async def stop(self) -> None:
        return None
