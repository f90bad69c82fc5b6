"""The endpoints of the SWE env pool server, with its documented fields, for clients that know only those.

They reach a sandbox through the pool, which passes commands on to the node's endpoints of the same form. A
lease made here lives for 30 minutes after the latest call on it.
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
# Of the containers that these clients are used to; disk and output were not limited there.
_LIMITS = LimitsBody(memory_mib=4096, pids=256, disk_mib=8192, output_kib=1024)

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Body(BaseModel):
    """Fields that are not documented are passed over, as that server does."""

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
    passing = _Passing(pool, session, node_token)
    return [*_lease_routes(pool), *_call_routes(passing), Route("/status", _status_of(pool), methods=["GET"])]


async def _parsed(request: Request, model: type[_Body]) -> Any:
    return model.model_validate_json(await read_body(request, _BODY_MAX))


@dataclass(frozen=True, slots=True)
class _Passing:
    """Calls that are passed on to the node of a lease, which does not expire meanwhile."""

    pool: Pool
    session: aiohttp.ClientSession
    node_token: str

    async def ask(self, request: Request, asked: OfLease, endpoint: str, timeout_s: float) -> Response:
        """The node's reply, unless the client leaves before."""
        return await while_connected(request.receive, self._ask(asked, endpoint, timeout_s))

    async def _ask(self, asked: OfLease, endpoint: str, timeout_s: float) -> Response:
        lease = self.pool.begin_call(asked.lease_id)
        try:
            assert lease.grant is not None
            body = asked.model_dump(exclude={"lease_id"}) | {"container_id": lease.grant.id}
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
        asked: Allocate = await _parsed(request, Allocate)
        wanted = LeaseRequest(
            lease_id=f"swe-lease-{secrets.token_hex(8)}",
            owner=OWNER,
            spec=SpecBody(image=image_name(asked.image), workdir=DEFAULT_WORKDIR, limits=_LIMITS),
            ttl_s=_LEASE_S,
            wait_s=_WAIT_S,
        )
        try:
            lease = await while_connected(request.receive, pool.allocate(wanted))
        except ClientDisconnect:  # it does not know the id, so that it can never close the lease
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
        asked: OfLease = await _parsed(request, OfLease)
        pool.finish_call(pool.begin_call(asked.lease_id))
        return JSONResponse({"ok": True})

    async def close(request: Request) -> Response:
        asked: OfLease = await _parsed(request, OfLease)
        if not asked.lease_id.startswith("swe-lease-"):
            raise SandboxLost(f"lease {asked.lease_id} was not made here")
        await pool.close(asked.lease_id)
        return JSONResponse({"ok": True})

    return [
        Route("/allocate", allocate, methods=["POST"]),
        Route("/heartbeat", heartbeat, methods=["POST"]),
        Route("/close", close, methods=["POST"]),
    ]


def _call_routes(passing: _Passing) -> list[Route]:
    async def execute(request: Request) -> Response:
        asked: Exec = await _parsed(request, Exec)
        return await passing.ask(request, asked, "exec", asked.timeout + _MARGIN_S)

    async def diff(request: Request) -> Response:
        return await passing.ask(request, await _parsed(request, Diff), "diff", 60.0 + _MARGIN_S)

    async def evaluate(request: Request) -> Response:
        asked: Evaluate = await _parsed(request, Evaluate)
        return await passing.ask(request, asked, "evaluate", asked.timeout + 60.0 + _MARGIN_S)

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
    """A plain name is one of a registry."""
    return image if image == "host" or image.startswith("docker://") else f"docker://{image}"
