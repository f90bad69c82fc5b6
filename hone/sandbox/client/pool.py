"""Client of a pool server."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp

from hone.sandbox.client.connection import Unreachable, connect
from hone.sandbox.client.tls import ClientTls
from hone.sandbox.contract import ProviderUnavailable, QueueTimeout
from hone.sandbox.remote.wire import (
    Beat,
    HeartbeatReply,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    StatusReply,
)
from hone.utils.clock import monotonic
from hone.utils.http_client import new_session
from hone.utils.retry import backoff_delays, retry

START_S = 720.0  # the longest start once a request has left the queue
CLOSE_S = 120.0
ASK_S = 15.0
_REFUSALS = 5  # retryable errors that the server may answer with before `allocate` gives up
_BEATS_MAX = 10_000  # of one request


class PoolClient:
    """One pool server. Every method raises what the server raised, and `Unreachable`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._http = connect(session, url, token)

    async def allocate(self, request: LeaseRequest) -> LeaseReply:
        """Wait for a lease, for up to `wait_s`.

        Asks for the same lease again while the server is unreachable (it may be restarting), and up to
        _REFUSALS times after other retryable errors.
        """
        deadline = monotonic() + request.wait_s
        refusals = 0

        async def attempt() -> LeaseReply:
            left_s = max(0.0, deadline - monotonic())
            body = request.model_copy(update={"wait_s": left_s}).model_dump_json().encode()
            reply = await self._http.request("POST", "/v1/leases", body=body, timeout_s=left_s + START_S)
            return LeaseReply.model_validate_json(reply)

        def transient(error: Exception) -> bool:
            nonlocal refusals
            if not isinstance(error, ProviderUnavailable) or isinstance(error, QueueTimeout):
                return False
            refusals += not isinstance(error, Unreachable)
            return error.retryable and refusals < _REFUSALS and monotonic() < deadline

        delays = backoff_delays(0.1, max_s=5.0, jitter=0.5)
        return await retry(attempt, attempts=1_000_000, delays=delays, transient=transient)

    async def heartbeat(self, beats: Sequence[Beat]) -> list[str]:
        """Renew leases; return the ids of those that are lost."""
        lost: list[str] = []
        for first in range(0, len(beats), _BEATS_MAX):
            body = HeartbeatRequest(leases=list(beats[first : first + _BEATS_MAX])).model_dump_json()
            reply = await self._http.request(
                "POST", "/v1/heartbeats", body=body.encode(), timeout_s=ASK_S, idempotent=True
            )
            lost += HeartbeatReply.model_validate_json(reply).lost
        return lost

    async def close(self, lease_id: str) -> None:
        """End a lease and its sandbox; no error when it ended before, or was never made."""
        await self._http.request("DELETE", f"/v1/leases/{lease_id}", timeout_s=CLOSE_S, idempotent=True)

    async def close_owner(self, owner: str) -> None:
        """End all leases of an owner."""
        await self._http.request("DELETE", f"/v1/owners/{owner}", timeout_s=CLOSE_S, idempotent=True)

    async def status(self) -> StatusReply:
        return StatusReply.model_validate_json(await self._http.request("GET", "/v1/status", timeout_s=ASK_S))


async def ask_status(url: str, token: str, tls: ClientTls) -> StatusReply:
    """Return the status of a pool, over a connection of its own. Raises ProviderUnavailable."""
    async with new_session(context=tls.context()) as session:
        return await PoolClient(session, url, token).status()
