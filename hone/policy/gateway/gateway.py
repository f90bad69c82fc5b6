"""The sessions of a gateway: open, find and close them."""

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
    """Access to sessions over HTTP: open, see and close them.

    Clients send `token` as `Authorization: Bearer TOKEN`; "" admits every client. `open` gets the requested
    limits, or None.
    """

    token: str
    open: Callable[[SessionLimits | None], Session]
    close: Callable[[Session], Awaitable[None]]


class Gateway:
    """Sessions, and the address at which clients reach them."""

    def __init__(self, *, url: str | None, socket: Path | None) -> None:
        self.url = url  # such as http://127.0.0.1:8080; None: it listens on no port
        self.socket = socket
        self._sessions: dict[bytes, Session] = {}

    @property
    def sessions(self) -> list[Session]:
        """The open sessions, the oldest first."""
        return list(self._sessions.values())

    def open(
        self,
        chat: Chat,
        *,
        limits: SessionLimits | None = None,
        on_exchange: Observer | None = None,
        drop_after: Callable[[], int | None] | None = None,
    ) -> Session:
        """Open a session in front of `chat`; the caller closes the chat. Clients need its `key` or `path`.

        Args:
            on_exchange: awaited once per answered call of the main line, in order, before the next call of
                the main line is sampled: the client has then acted on the reply. The last call is shown when
                the session closes; auxiliary calls never. Its exception ends the session (`session.error`).
            drop_after: injects faults: returns, before each response, the bytes of the body after which to
                cut the connection, or None.
        """
        session = Session(
            chat, limits=limits or SessionLimits(), on_exchange=on_exchange, drop_after=drop_after
        )
        self._sessions[_digest(session.key)] = session
        return session

    async def close(self, session: Session) -> None:
        """End a session, its key and everything that it runs. May be called again."""
        self._sessions.pop(_digest(session.key), None)
        await session.close()

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(session) for session in self.sessions))

    def find(self, key: str) -> Session | None:
        """Return the session with this key, in a time that reveals nothing about other keys."""
        session = self._sessions.get(_digest(key))
        if session is None or not hmac.compare_digest(_digest(key), _digest(session.key)):
            return None
        return session

    def find_by_id(self, name: str) -> Session | None:
        return next((session for session in self.sessions if session.id == name), None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
