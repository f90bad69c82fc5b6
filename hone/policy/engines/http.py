"""JSON over HTTP to one server; what can go wrong is told apart by who can mend it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import aiohttp

from hone.policy.engine import EngineError

CONNECT_S = 10.0
_LONG_BODY = 1 << 18  # bytes beyond which JSON is parsed off the event loop
# Servers close idle connections after 5 s; one that the client gives up first never breaks a request.
_KEEP_ALIVE_S = 3.0


class Unreachable(EngineError):
    """The server is gone, hangs, or failed by itself: another one may serve the same request."""


class Refused(EngineError):
    """The server understood the request and will not serve it; every server would say the same."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def new_session() -> aiohttp.ClientSession:
    """A session for any number of servers and of requests at a time; close it."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S))


class Http:
    """One server. `key` is sent as a bearer token."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def get(self, path: str, *, timeout_s: float = 30.0) -> Any:
        """The parsed body; None where there is none. Raises Unreachable, Refused."""
        return await self._request("GET", path, None, timeout_s)

    async def post(self, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """The parsed body; None where there is none. Raises Unreachable, Refused.

        Cancelling closes the connection, upon which the server drops the request.
        """
        return await self._request("POST", path, body, timeout_s)

    async def _request(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        where = f"{self.url}{path.partition('?')[0]}"
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_S)
        try:
            async with self._session.request(
                method, f"{self.url}{path}", json=body, headers=self._headers, timeout=timeout
            ) as response:
                status, raw = response.status, await response.read()
        except aiohttp.InvalidURL:
            raise Refused(f"{self.url!r} is not a URL: give one such as http://host:8000", 0) from None
        except TimeoutError:
            raise Unreachable(f"{where} gave no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{where} cannot be reached ({_reason(error)})") from error
        if status >= 500:
            raise Unreachable(f"{where} failed with HTTP {status}: {_message(raw)}")
        if status >= 400:
            raise Refused(f"{where} refused with HTTP {status}: {_message(raw)}", status)
        if not raw:
            return None
        try:
            return await asyncio.to_thread(json.loads, raw) if len(raw) > _LONG_BODY else json.loads(raw)
        except ValueError:
            raise Unreachable(f"{where} answered with something that is not JSON: {raw[:80]!r}") from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _message(raw: bytes) -> str:
    """What the server says is wrong, in one line."""
    text = raw.decode(errors="replace")
    body: Any
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    while isinstance(body, dict):
        said = cast("dict[str, Any]", body)
        body = said.get("error") or said.get("message") or json.dumps(said)
    return " ".join(str(body).split())[:400] or "no explanation"
