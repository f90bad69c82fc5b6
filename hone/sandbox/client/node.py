"""Client of a node server, for a pool or for a program without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import aiohttp

from hone.sandbox.client.connection import connect
from hone.sandbox.contract import SandboxError, SandboxLost
from hone.sandbox.remote.wire import (
    IDEMPOTENCY_HEADER,
    CreateReply,
    CreateRequest,
    NodeReply,
    RenewReply,
    RenewRequest,
)

START_S = 660.0  # the longest start, an image pull included
CLOSE_S = 60.0
ASK_S = 10.0


class NodeClient:
    """One node. Every method raises what the node raised, and `Unreachable`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._http = connect(session, url, token)
        self.url = self._http.url

    async def create(self, request: CreateRequest, *, key: str, timeout_s: float = START_S) -> CreateReply:
        """Create a sandbox; the same `key` returns the same one, and cancellation destroys it.

        After Unreachable a sandbox may exist; it expires, because no client renews it.
        """
        headers = {IDEMPOTENCY_HEADER: key}
        body = request.model_dump_json().encode()
        try:
            reply = await self._http.request(
                "POST", "/v1/sandboxes", body=body, headers=headers, timeout_s=timeout_s, idempotent=True
            )
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                await self._http.request("DELETE", "/v1/sandboxes", headers=headers, timeout_s=ASK_S)
            raise
        return CreateReply.model_validate_json(reply)

    async def destroy(self, sandbox_id: str) -> None:
        """Return once the sandbox is destroyed, or was before."""
        path = f"/v1/sandboxes/{sandbox_id}"
        with contextlib.suppress(SandboxLost):
            await self._http.request("DELETE", path, timeout_s=CLOSE_S, idempotent=True)

    async def renew(self, ids: Sequence[str], ttl_s: float) -> list[str]:
        """Let sandboxes live for `ttl_s` from now; return the ids that the node does not have."""
        body = RenewRequest(ids=list(ids), ttl_s=ttl_s).model_dump_json().encode()
        reply = await self._http.request("POST", "/v1/renewals", body=body, timeout_s=ASK_S, idempotent=True)
        return RenewReply.model_validate_json(reply).lost

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
