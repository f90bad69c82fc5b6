"""Clients of node and pool servers, whose errors arrive as the exceptions of the sandbox contract.

Every method raises what the server raised, and `Unreachable`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from hone.sandbox.contract import ProviderUnavailable, QueueTimeout, SandboxError, SandboxLost
from hone.sandbox.remote.errors import from_body
from hone.sandbox.remote.server import ClientTls
from hone.sandbox.remote.wire import (
    IDEMPOTENCY_HEADER,
    OWNER_KEY_HEADER,
    Beat,
    CreateReply,
    CreateRequest,
    ErrorBody,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    NodeReply,
    RenewReply,
    RenewRequest,
    StatusReply,
    Wire,
)
from hone.utils.clock import monotonic
from hone.utils.http_client import HttpClient, HttpError, new_session
from hone.utils.retry import ENDLESS, backoff_delays, retry

START_S = 660.0  # the longest start, an image pull included
CLOSE_S = 60.0
ASK_S = 10.0
_POOL_S = 60.0  # added for a pool, which asks its nodes
_REFUSALS = 5  # retryable errors that a pool may answer with before `allocate` gives up
_BEATS_MAX = 10_000  # of one request

Reply = TypeVar("Reply", bound=Wire)


class Unreachable(ProviderUnavailable):
    """No complete reply arrived: the server may or may not have done what it was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


def connect(session: aiohttp.ClientSession, url: str, token: str) -> HttpClient:
    """Return a client whose requests raise what the server raised, or Unreachable."""
    return HttpClient(session, url, token=token, translate=_to_exception)


def _to_exception(error: HttpError) -> Exception:
    if error.status is None:
        return Unreachable(str(error))
    try:
        return from_body(ErrorBody.model_validate_json(error.body))
    except ValidationError:
        return ProviderUnavailable(
            f"{error}. This is not the reply of a node or pool server: check the address",
            retryable=error.status >= 500,
        )


class _ServerClient:
    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._http = connect(session, url, token)
        self.url = self._http.url

    async def _post(
        self,
        path: str,
        body: Wire,
        reply: type[Reply],
        *,
        timeout_s: float = ASK_S,
        key: str = "",
        idempotent: bool = True,
    ) -> Reply:
        data = await self._http.request(
            "POST",
            path,
            body=body.model_dump_json().encode(),
            headers={IDEMPOTENCY_HEADER: key} if key else None,
            timeout_s=timeout_s,
            idempotent=idempotent,
        )
        return reply.model_validate_json(data)

    async def _delete(self, path: str, timeout_s: float) -> None:
        await self._http.request("DELETE", path, timeout_s=timeout_s, idempotent=True)


class NodeClient(_ServerClient):
    """One node, for a pool or for a program without one."""

    async def create(self, request: CreateRequest, *, key: str, timeout_s: float = START_S) -> CreateReply:
        """Create a sandbox; the same `key` returns the same one, and cancellation destroys it.

        After Unreachable a sandbox may exist; it expires, because no client renews it.
        """
        path = "/v1/sandboxes"
        try:
            return await self._post(path, request, CreateReply, timeout_s=timeout_s, key=key)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                headers = {IDEMPOTENCY_HEADER: key}
                await self._http.request("DELETE", path, headers=headers, timeout_s=ASK_S)
            raise

    async def destroy(self, sandbox_id: str) -> None:
        """Return once the sandbox is destroyed, or was before."""
        with contextlib.suppress(SandboxLost):
            await self._delete(f"/v1/sandboxes/{sandbox_id}", CLOSE_S)

    async def renew(self, ids: Sequence[str], ttl_s: float) -> list[str]:
        """Let sandboxes live for `ttl_s` from now; return the ids that the node does not have."""
        body = RenewRequest(ids=list(ids), ttl_s=ttl_s)
        return (await self._post("/v1/renewals", body, RenewReply)).lost

    async def info(self) -> NodeReply:
        """Return what the node has."""
        return NodeReply.model_validate_json(await self._http.request("GET", "/v1/node", timeout_s=ASK_S))

    async def healthy(self) -> bool:
        """Whether the node's own probe of its provider succeeds."""
        try:
            await self._http.request("GET", "/healthz", timeout_s=ASK_S)
        except SandboxError:
            return False
        return True


class PoolClient(_ServerClient):
    """One pool server. Leases of a client with `owner_key` serve clients with the same key alone."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str, *, owner_key: str = "") -> None:
        super().__init__(session, url, token)
        if owner_key:
            self._http.headers[OWNER_KEY_HEADER] = owner_key

    async def allocate(self, request: LeaseRequest) -> LeaseReply:
        """Wait for a lease, for up to `wait_s`.

        Asks for the same lease again while the server is unreachable (it may be restarting), and up to
        _REFUSALS times after other retryable errors.
        """
        deadline = monotonic() + request.wait_s
        refusals = 0

        async def attempt() -> LeaseReply:
            left_s = max(0.0, deadline - monotonic())
            body = request.model_copy(update={"wait_s": left_s})
            timeout_s = left_s + START_S + _POOL_S
            return await self._post("/v1/leases", body, LeaseReply, timeout_s=timeout_s, idempotent=False)

        def transient(error: Exception) -> bool:
            nonlocal refusals
            if not isinstance(error, ProviderUnavailable) or isinstance(error, QueueTimeout):
                return False
            refusals += not isinstance(error, Unreachable)
            return error.retryable and refusals < _REFUSALS and monotonic() < deadline

        delays = backoff_delays(0.1, max_s=5.0, jitter=0.5)
        return await retry(attempt, attempts=ENDLESS, delays=delays, transient=transient)

    async def heartbeat(self, beats: Sequence[Beat]) -> list[str]:
        """Renew leases; return the ids of those that are lost."""
        lost: list[str] = []
        for first in range(0, len(beats), _BEATS_MAX):
            body = HeartbeatRequest(leases=list(beats[first : first + _BEATS_MAX]))
            lost += (await self._post("/v1/heartbeats", body, RenewReply)).lost
        return lost

    async def close(self, lease_id: str) -> None:
        """End a lease and its sandbox; no error when it ended before, or was never made."""
        await self._delete(f"/v1/leases/{lease_id}", CLOSE_S + _POOL_S)

    async def close_owner(self, owner: str) -> None:
        """End all leases of an owner."""
        await self._delete(f"/v1/owners/{owner}", CLOSE_S + _POOL_S)

    async def status(self) -> StatusReply:
        return StatusReply.model_validate_json(await self._http.request("GET", "/v1/status", timeout_s=ASK_S))


async def ask_status(url: str, token: str, tls: ClientTls) -> StatusReply:
    """Return the status of a pool, over a connection of its own. Raises ProviderUnavailable."""
    async with new_session(context=tls.context()) as session:
        return await PoolClient(session, url, token).status()
