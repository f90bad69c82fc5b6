"""The gateway: opens and closes sessions, and finds the one that a request's secret belongs to."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from hone.policy.gateway.session import Observer, Session
from hone.policy.gateway.settings import SessionLimits
from hone.policy.reply import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """Who may open, see and close sessions over HTTP.

    `token` must be presented as `Authorization: Bearer TOKEN`; "" lets everyone in who can connect. `open` is
    given the limits that were asked for, or None for its own.
    """

    token: str
    open: Callable[[SessionLimits | None], Session]
    close: Callable[[Session], Awaitable[None]]


class Gateway:
    """Sessions, and where clients reach them."""

    def __init__(self, *, url: str | None, socket: Path | None) -> None:
        self.url = url  # such as http://127.0.0.1:8080; None: it listens on no port
        self.socket = socket
        self._sessions: dict[bytes, Session] = {}

    @property
    def sessions(self) -> list[Session]:
        """The open ones, the oldest first."""
        return list(self._sessions.values())

    def open(
        self,
        chat: Chat,
        *,
        limits: SessionLimits | None = None,
        on_exchange: Observer | None = None,
        drop_after: Callable[[], int | None] | None = None,
    ) -> Session:
        """A session in front of `chat`, which stays the caller's to close. Clients need its `key` or `path`.

        `on_exchange` is awaited once for each answered call of the main line, in order: when the next call of
        the main line arrives and before it is sampled, so that whatever the client did with the reply is done
        and nothing further is; for the last one when the session is closed. Side calls are not shown. An
        exception of it ends the session and stands in `session.error`.

        `drop_after` is for trying clients out: asked before each answer, it gives the bytes of the body after
        which the connection is cut, or None.
        """
        session = Session(
            chat, limits=limits or SessionLimits(), on_exchange=on_exchange, drop_after=drop_after
        )
        self._sessions[_digest(session.key)] = session
        return session

    async def close(self, session: Session) -> None:
        """End a session: its key opens nothing any more, and nothing of it runs. May be called again."""
        self._sessions.pop(_digest(session.key), None)
        await session.close()

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(session) for session in self.sessions))

    def find(self, key: str) -> Session | None:
        """The session with this secret, in a time that tells nothing about other secrets."""
        session = self._sessions.get(_digest(key))
        if session is None or not hmac.compare_digest(_digest(key), _digest(session.key)):
            return None
        return session

    def find_by_id(self, name: str) -> Session | None:
        return next((session for session in self.sessions if session.id == name), None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
