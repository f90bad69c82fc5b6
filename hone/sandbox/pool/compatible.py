"""Endpoints for clients of the SWE env pool server, with its documented fields.

Such clients reach a sandbox through the pool, which forwards commands to the same endpoints of the node.
Their leases live for 30 minutes after the latest call.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Annotated

import aiohttp
import msgspec
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hone.sandbox.client.api import Unreachable
from hone.sandbox.contract import SandboxLost
from hone.sandbox.node.api import JSON_MAX
from hone.sandbox.node.exec_server import EVALUATE_MAX
from hone.sandbox.pool.core import Pool
from hone.sandbox.remote.server import presented_owner_key
from hone.sandbox.remote.wire import LeaseRequest, container_spec
from hone.utils.http_client import HttpClient, HttpError
from hone.utils.http_server import read_model, while_connected

OWNER = "swe-env"
_OWN = "made here"  # owner key of leases that these endpoints alone serve, to clients that know the random id
_LEASE_S = 1800.0
_WAIT_S = 120.0  # in the queue
_DEFAULT_S = {"exec": 180.0, "diff": 60.0, "evaluate": 3600.0}  # time limits of the calls that nodes serve
_MARGIN_S = 90.0  # beyond a call's own time; an evaluation also applies a patch
_NAMES_MAX = 1 << 16  # bytes of a request that names an image or a lease


class Allocate(BaseModel):
    image: str = Field(min_length=1)


class OfLease(BaseModel):
    lease_id: str


class Call(OfLease):
    """A call of a node's sandbox; the node checks the other fields. Those that are missing are not sent."""

    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    cwd: str | None = None
    command: str | None = None
    env: dict[str, str] | None = None
    patch: str | None = None
    eval_script: str | None = None


def routes(pool: Pool, session: aiohttp.ClientSession, *, node_token: str) -> list[Route]:
    async def forward(request: Request) -> Response:
        """Return the reply of the lease's node; cancel the call when the client disconnects."""
        endpoint = request.url.path.strip("/")
        payload = await read_model(request, Call, EVALUATE_MAX if endpoint == "evaluate" else JSON_MAX)
        owner_keys = (_OWN, presented_owner_key(request))
        operation = _forward(pool, session, node_token, endpoint, payload, owner_keys)
        return await while_connected(request.receive, operation)

    async def status(request: Request) -> Response:
        found = pool.status()
        nodes = [
            {
                "url": node.url,
                "active_containers": node.active + node.starting,
                "max_containers": node.capacity,
                "healthy": node.state in ("active", "draining"),
            }
            for node in found.nodes
        ]
        return JSONResponse({"ok": True, "pool": {"total_leases": len(found.leases), "nodes": nodes}})

    return [
        *_lease_routes(pool),
        *(Route(f"/{endpoint}", forward, methods=["POST"]) for endpoint in _DEFAULT_S),
        Route("/status", status, methods=["GET"]),
    ]


async def _forward(
    pool: Pool,
    session: aiohttp.ClientSession,
    node_token: str,
    endpoint: str,
    payload: Call,
    owner_keys: Collection[str],
) -> Response:
    lease = pool.begin_call(payload.lease_id, owner_keys=owner_keys)  # it does not expire meanwhile
    try:
        assert lease.grant is not None
        fields = payload.model_dump(exclude={"lease_id"}, exclude_unset=True)
        data = msgspec.json.encode({**fields, "container_id": lease.grant.id})
        timeout_s = _MARGIN_S + (payload.timeout or _DEFAULT_S[endpoint])
        node = HttpClient(session, lease.node_url, token=node_token)
        reply = await node.request("POST", f"/container/{endpoint}", body=data, timeout_s=timeout_s)
        return Response(reply, media_type="application/json")
    except HttpError as error:
        if error.status is None:
            raise Unreachable(str(error)) from error
        return Response(error.body, error.status, media_type="application/json")
    finally:
        pool.finish_call(lease)


def _lease_routes(pool: Pool) -> list[Route]:
    async def allocate(request: Request) -> Response:
        payload = await read_model(request, Allocate, _NAMES_MAX)
        wanted = LeaseRequest(
            lease_id=f"swe-lease-{secrets.token_hex(8)}",
            owner=OWNER,
            spec=container_spec(payload.image),
            ttl_s=_LEASE_S,
            wait_s=_WAIT_S,
        )
        try:
            operation = pool.allocate(wanted, owner_key=_OWN)
            lease = await while_connected(request.receive, operation)
        except ClientDisconnect:  # the client never learns the id, so it cannot close the lease
            await pool.close(wanted.lease_id)
            raise
        return JSONResponse(
            {
                "ok": True,
                "lease_id": lease.lease_id,
                "container_id": lease.sandbox_id,
                "node_url": lease.node_url,
            }
        )

    async def heartbeat(request: Request) -> Response:
        payload = await read_model(request, OfLease, _NAMES_MAX)
        pool.finish_call(pool.begin_call(payload.lease_id, owner_keys=(_OWN,)))
        return JSONResponse({"ok": True})

    async def close(request: Request) -> Response:
        payload = await read_model(request, OfLease, _NAMES_MAX)
        if not payload.lease_id.startswith("swe-lease-"):
            raise SandboxLost(f"lease {payload.lease_id} was not made here")
        await pool.close(payload.lease_id, owner_keys=(_OWN,))
        return JSONResponse({"ok": True})

    return [
        Route("/allocate", allocate, methods=["POST"]),
        Route("/heartbeat", heartbeat, methods=["POST"]),
        Route("/close", close, methods=["POST"]),
    ]
