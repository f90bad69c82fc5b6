"""Endpoints for clients of the SWE env pool server, with its documented fields.

Such clients reach a sandbox through the pool, which forwards commands to the same endpoints of the node.
Their leases live for 30 minutes after the latest call.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hone.sandbox.client.connection import Unreachable
from hone.sandbox.contract import DEFAULT_WORKDIR, SandboxLost
from hone.sandbox.pool.core import Pool
from hone.sandbox.remote.wire import LeaseRequest, LimitsBody, SpecBody
from hone.utils.http_client import HttpClient, HttpError
from hone.utils.http_server import read_body, while_connected

OWNER = "swe-env"
_LEASE_S = 1800.0
_WAIT_S = 120.0  # in the queue
_MARGIN_S = 30.0  # beyond a command's own time; an evaluation also applies a patch
_BODY_MAX = 64 << 20  # bytes; patches may be large
# The limits of that server's containers, which has none for disk and output.
_LIMITS = LimitsBody(memory_mib=4096, pids=256, disk_mib=8192, output_kib=1024)

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Body(BaseModel):
    """Unknown fields are ignored, as that server does."""

    model_config = ConfigDict(frozen=True)


class Allocate(_Body):
    image: str = Field(min_length=1)
    instance_id: str = ""


class OfLease(_Body):
    lease_id: str


class Exec(OfLease):
    command: str
    cwd: str = ""
    timeout: Seconds = 180.0
    env: dict[str, str] = {}


class Diff(OfLease):
    cwd: str = ""


class Evaluate(OfLease):
    patch: str
    eval_script: str
    cwd: str = ""
    timeout: Seconds = 3600.0


def routes(pool: Pool, session: aiohttp.ClientSession, *, node_token: str) -> list[Route]:
    forwarder = _Forwarder(pool, session, node_token)
    return [
        *_lease_routes(pool),
        *_call_routes(forwarder),
        Route("/status", _status_of(pool), methods=["GET"]),
    ]


async def _parsed(request: Request, model: type[_Body]) -> Any:
    return model.model_validate_json(await read_body(request, _BODY_MAX))


@dataclass(frozen=True, slots=True)
class _Forwarder:
    """Forwards calls to the node of a lease, which does not expire meanwhile."""

    pool: Pool
    session: aiohttp.ClientSession
    node_token: str

    async def forward(self, request: Request, payload: OfLease, endpoint: str, timeout_s: float) -> Response:
        """Return the node's reply; cancel the call when the client disconnects."""
        return await while_connected(request.receive, self._forward(payload, endpoint, timeout_s))

    async def _forward(self, payload: OfLease, endpoint: str, timeout_s: float) -> Response:
        lease = self.pool.begin_call(payload.lease_id)
        try:
            assert lease.grant is not None
            body = payload.model_dump(exclude={"lease_id"}) | {"container_id": lease.grant.id}
            node = HttpClient(self.session, lease.node_url, token=self.node_token)
            data, status = json.dumps(body).encode(), 200
            reply = await node.request("POST", f"/container/{endpoint}", body=data, timeout_s=timeout_s)
        except HttpError as error:
            if error.status is None:
                raise Unreachable(str(error)) from error
            reply, status = error.body, error.status
        finally:
            self.pool.finish_call(lease)
        return Response(reply, status, media_type="application/json")


def _lease_routes(pool: Pool) -> list[Route]:
    async def allocate(request: Request) -> Response:
        payload: Allocate = await _parsed(request, Allocate)
        wanted = LeaseRequest(
            lease_id=f"swe-lease-{secrets.token_hex(8)}",
            owner=OWNER,
            spec=SpecBody(image=image_name(payload.image), workdir=DEFAULT_WORKDIR, limits=_LIMITS),
            ttl_s=_LEASE_S,
            wait_s=_WAIT_S,
        )
        try:
            lease = await while_connected(request.receive, pool.allocate(wanted))
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
        payload: OfLease = await _parsed(request, OfLease)
        pool.finish_call(pool.begin_call(payload.lease_id))
        return JSONResponse({"ok": True})

    async def close(request: Request) -> Response:
        payload: OfLease = await _parsed(request, OfLease)
        if not payload.lease_id.startswith("swe-lease-"):
            raise SandboxLost(f"lease {payload.lease_id} was not made here")
        await pool.close(payload.lease_id)
        return JSONResponse({"ok": True})

    return [
        Route("/allocate", allocate, methods=["POST"]),
        Route("/heartbeat", heartbeat, methods=["POST"]),
        Route("/close", close, methods=["POST"]),
    ]


def _call_routes(forwarder: _Forwarder) -> list[Route]:
    async def execute(request: Request) -> Response:
        payload: Exec = await _parsed(request, Exec)
        return await forwarder.forward(request, payload, "exec", payload.timeout + _MARGIN_S)

    async def diff(request: Request) -> Response:
        return await forwarder.forward(request, await _parsed(request, Diff), "diff", 60.0 + _MARGIN_S)

    async def evaluate(request: Request) -> Response:
        payload: Evaluate = await _parsed(request, Evaluate)
        return await forwarder.forward(request, payload, "evaluate", payload.timeout + 60.0 + _MARGIN_S)

    return [
        Route("/exec", execute, methods=["POST"]),
        Route("/diff", diff, methods=["POST"]),
        Route("/evaluate", evaluate, methods=["POST"]),
    ]


def _status_of(pool: Pool) -> Callable[[Request], Awaitable[Response]]:
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

    return status


def image_name(image: str) -> str:
    """Return the image reference of a name; a plain name is an image of a registry."""
    return image if image == "host" or image.startswith("docker://") else f"docker://{image}"
