"""The pool server: the version 1 endpoints of `hone.sandbox.remote.wire`, and its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hone.sandbox.client.api import NodeClient
from hone.sandbox.contract import ProviderUnavailable, Unauthorized
from hone.sandbox.pool import compatible
from hone.sandbox.pool.core import Pool
from hone.sandbox.remote.errors import error_response
from hone.sandbox.remote.server import HEALTH_PATH, METRICS_PATH, ClientTls, Listening, make_server_app
from hone.sandbox.remote.wire import HeartbeatRequest, LeaseRequest, Name, NodeRequest, RenewReply
from hone.utils.http_client import new_session
from hone.utils.http_server import (
    RequireToken,
    model_response,
    read_model,
    serving,
    stop_event,
    while_connected,
)

_BODY_MAX = 8 << 20  # bytes; 10,000 heartbeats take a fifth
_REQUESTS = 20_000  # at a time; most of them wait in the queue
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def make_pool_app(pool: Pool, session: aiohttp.ClientSession, *, token: str, node_token: str) -> ASGIApp:
    """Return the application of an open pool; `session` is for requests that it forwards to nodes."""

    def denied() -> Response:
        return error_response(Unauthorized("the token is missing or wrong"))

    routes = [
        *_lease_routes(pool),
        *compatible.routes(pool, session, node_token=node_token),
        *_operation_routes(pool),
    ]
    app = make_server_app(routes, count_error=pool.metrics.count_error, max_requests=_REQUESTS)
    return RequireToken(app, token=token, denied=denied, exempt=(HEALTH_PATH,))


def _lease_routes(pool: Pool) -> list[Route]:
    async def allocate(request: Request) -> Response:
        payload = await read_model(request, LeaseRequest, _BODY_MAX)
        return model_response(await while_connected(request.receive, pool.allocate(payload)))

    async def heartbeat(request: Request) -> Response:
        payload = await read_model(request, HeartbeatRequest, _BODY_MAX)
        return model_response(RenewReply(lost=pool.heartbeat(payload.leases)))

    async def look(request: Request) -> Response:
        return model_response(pool.look(request.path_params["lease_id"]))

    async def close(request: Request) -> Response:
        generation = request.query_params.get("generation")
        lease_id = _NAME.validate_python(request.path_params["lease_id"])
        await pool.close(lease_id, int(generation) if generation else None)
        return JSONResponse({"ok": True})

    async def close_owner(request: Request) -> Response:
        return JSONResponse({"ok": True, "closed": await pool.close_owner(request.path_params["owner"])})

    return [
        Route("/v1/leases", allocate, methods=["POST"]),
        Route("/v1/heartbeats", heartbeat, methods=["POST"]),
        Route("/v1/leases/{lease_id}", close, methods=["DELETE"]),
        Route("/v1/leases/{lease_id}", look, methods=["GET"]),
        Route("/v1/owners/{owner}", close_owner, methods=["DELETE"]),
    ]


def _operation_routes(pool: Pool) -> list[Route]:
    async def healthz(request: Request) -> Response:
        if reason := pool.unhealthy():
            raise ProviderUnavailable(reason, retryable=True)
        return JSONResponse({"ok": True})

    async def metrics(request: Request) -> Response:
        return Response(pool.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def status(request: Request) -> Response:
        return model_response(pool.status())

    async def put_node(request: Request) -> Response:
        await pool.put_node(await read_model(request, NodeRequest, _BODY_MAX))
        return JSONResponse({"ok": True})

    async def remove_node(request: Request) -> Response:
        force = request.query_params.get("force", "false").lower() in ("true", "1")
        await pool.remove_node(request.query_params.get("url", ""), force=force)
        return JSONResponse({"ok": True})

    return [
        Route(HEALTH_PATH, healthz, methods=["GET"]),
        Route(METRICS_PATH, metrics, methods=["GET"]),
        Route("/v1/status", status, methods=["GET"]),
        Route("/v1/nodes", put_node, methods=["POST"]),
        Route("/v1/nodes", remove_node, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    store: Path
    token: str = ""  # that clients present; "" lets everyone in
    nodes: tuple[str, ...] = ()
    node_token: str = ""
    node_tls: ClientTls = field(default_factory=ClientTls)
    max_per_node: int = 0  # sandboxes; 0: the node's own capacity


async def run(options: PoolOptions, listening: Listening, *, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; leases outlive the process. `on_listening` gets the server's URL.

    Raises ProviderUnavailable when the options cannot be used.
    """
    with listening.open(options.token) as listener:
        stop = stop_event()
        on_listening(listening.url(listener))
        async with new_session(context=options.node_tls.context()) as session:
            pool = Pool(
                options.store,
                lambda url: NodeClient(session, url, options.node_token),
                nodes=options.nodes,
                max_sandboxes=options.max_per_node,
            )
            async with pool:
                app = make_pool_app(pool, session, token=options.token, node_token=options.node_token)
                async with serving(app, [listener], on_stop=pool.stop, tls=listening.tls):
                    await stop.wait()
