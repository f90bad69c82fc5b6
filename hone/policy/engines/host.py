"""Where a server is: at a URL that somebody else keeps, or in a process that the run keeps (`managed.py`)."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Host(Protocol):
    """The keeper of one server's process."""

    name: str

    async def start(self) -> str:
        """The URL at which the server answers; starts it where need be. Raises EngineError."""
        ...

    async def ended(self) -> str:
        """Returns when the server's process has ended, with what is known of why."""
        ...

    async def stop(self) -> None: ...


class Elsewhere:
    """A server that somebody else keeps; whether it lives is seen by asking it."""

    def __init__(self, url: str) -> None:
        self.name = url

    async def start(self) -> str:
        return self.name

    async def ended(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets this event")

    async def stop(self) -> None:
        return None
