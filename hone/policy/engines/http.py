"""JSON over HTTP to one inference server, with errors that say whether another server may do better."""

from __future__ import annotations

from typing import Any

import aiohttp

from hone.policy.engine import EngineError
from hone.utils import http_client
from hone.utils.http_client import HttpClient, HttpError

# vLLM and SGLang close idle connections after 5 s; a client that closes them first breaks no request
_KEEP_ALIVE_S = 3.0


class ServerUnavailable(EngineError):
    """The server is gone, hangs or failed internally: another one may serve the same request."""


class Refused(EngineError):
    """The server rejected the request; every other server would reject it, too."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def new_session() -> aiohttp.ClientSession:
    """Return a session for any number of servers and concurrent requests; the caller closes it."""
    return http_client.new_session(keep_alive_s=_KEEP_ALIVE_S)


class Http:
    """One server. `key` is sent as a bearer token. Raises Refused for a URL that is none."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refused(f"{url!r} is not a URL: give one such as http://host:8000", 0)
        self._client = HttpClient(session, url, token=key or "", translate=_engine_error)
        self.url = self._client.url

    async def get(self, path: str, *, timeout_s: float = 30.0) -> Any:
        """Return the parsed body; None for an empty one. Raises ServerUnavailable, Refused."""
        return await self._client.request_json("GET", path, timeout_s=timeout_s)

    async def post(self, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Return the parsed body; None for an empty one. Raises ServerUnavailable, Refused.

        Cancelling closes the connection, which tells the server to drop the request.
        """
        return await self._client.request_json("POST", path, body, timeout_s=timeout_s)


def _engine_error(error: HttpError) -> EngineError:
    if error.status is None or error.status >= 500:
        return ServerUnavailable(str(error))
    return Refused(str(error), error.status)
