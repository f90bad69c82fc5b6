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
from hone.sandbox.remote.server import (
    HEALTH_PATH,
    METRICS_PATH,
    ClientTls,
    Listening,
    make_server_app,
    presented_owner_key,
)
from hone.sandbox.remote.wire import (
    HeartbeatRequest,
    LeaseRequest,
    Name,
    NodeRequest,
    RenewReply,
)
from hone.utils.http_client import new_session
from hone.utils.http_memory import release_body
from hone.utils.http_server import (
    RequireToken,
    is_same_token,
    model_response,
    presented_token,
    read_model,
    serving,
    stop_event,
    while_connected,
)

_BODY_MAX = 2 << 20  # bytes; 10,000 heartbeats fit in
_REQUESTS = 20_000  # at a time; most of them wait in the queue
_STATUS_PATH, _NODES_PATH = "/v1/status", "/v1/nodes"
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def make_pool_app(pool: Pool, session: aiohttp.ClientSession, *, token: str, node_token: str) -> ASGIApp:
    """Return the application of an open pool; `session` is for requests that it forwards to nodes."""

    def denied() -> Response:
        return error_response(Unauthorized("the token is missing or wrong"))

    roles = _Roles(token, node_token)
    routes = [
        *_lease_routes(pool),
        *compatible.routes(pool, session, node_token=node_token),
        *_operation_routes(pool, roles),
    ]
    app = make_server_app(routes, count_error=pool.metrics.count_error, max_requests=_REQUESTS)
    exempt = (HEALTH_PATH, METRICS_PATH, _STATUS_PATH, _NODES_PATH)  # these look at roles themselves
    return RequireToken(app, token=token, denied=denied, exempt=exempt)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Clients lease sandboxes. Operators, who hold the token of the nodes, add and remove nodes."""

    client_token: str
    node_token: str

    def is_operator(self, request: Request) -> bool:
        if not self.node_token:  # only a server without any token trusts everyone with its nodes
            return not self.client_token
        return is_same_token(presented_token(request), self.node_token)

    def require_operator(self, request: Request) -> None:
        """Raise Unauthorized unless the request presents the token of the nodes."""
        if not self.is_operator(request):
            needed = "the token of the nodes" if self.node_token else "a pool with --node-token-file"
            raise Unauthorized(f"adding and removing nodes needs {needed}")

    def require_any(self, request: Request) -> None:
        """Raise Unauthorized unless the request presents the token of clients or of nodes."""
        is_client = not self.client_token or is_same_token(presented_token(request), self.client_token)
        if not is_client and not self.is_operator(request):
            raise Unauthorized("the token is missing or wrong")


def _lease_routes(pool: Pool) -> list[Route]:
    async def allocate(request: Request) -> Response:
        payload = await read_model(request, LeaseRequest, _BODY_MAX)
        release_body(request)  # it may wait in the queue for hours
        operation = pool.allocate(payload, owner_key=presented_owner_key(request))
        return model_response(await while_connected(request.receive, operation))

    async def heartbeat(request: Request) -> Response:
        payload = await read_model(request, HeartbeatRequest, _BODY_MAX)
        return model_response(
            RenewReply(lost=pool.heartbeat(payload.leases, owner_key=presented_owner_key(request)))
        )

    async def look(request: Request) -> Response:
        return model_response(
            pool.look(request.path_params["lease_id"], owner_key=presented_owner_key(request))
        )

    async def close(request: Request) -> Response:
        generation = request.query_params.get("generation")
        lease_id = _NAME.validate_python(request.path_params["lease_id"])
        of = int(generation) if generation else None
        await pool.close(lease_id, of, owner_keys=(presented_owner_key(request),))
        return JSONResponse({"ok": True})

    async def close_owner(request: Request) -> Response:
        owner = request.path_params["owner"]
        return JSONResponse(
            {"ok": True, "closed": await pool.close_owner(owner, owner_key=presented_owner_key(request))}
        )

    return [
        Route("/v1/leases", allocate, methods=["POST"]),
        Route("/v1/heartbeats", heartbeat, methods=["POST"]),
        Route("/v1/leases/{lease_id}", close, methods=["DELETE"]),
        Route("/v1/leases/{lease_id}", look, methods=["GET"]),
        Route("/v1/owners/{owner}", close_owner, methods=["DELETE"]),
    ]


def _operation_routes(pool: Pool, roles: _Roles) -> list[Route]:
    async def healthz(request: Request) -> Response:
        if reason := pool.unhealthy():
            raise ProviderUnavailable(reason, retryable=True)
        return JSONResponse({"ok": True})

    async def metrics(request: Request) -> Response:
        roles.require_any(request)
        return Response(pool.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def status(request: Request) -> Response:
        roles.require_any(request)
        return model_response(
            pool.status(seen_by=None if roles.is_operator(request) else presented_owner_key(request))
        )

    async def put_node(request: Request) -> Response:
        roles.require_operator(request)
        await pool.put_node(await read_model(request, NodeRequest, _BODY_MAX))
        return JSONResponse({"ok": True})

    async def remove_node(request: Request) -> Response:
        roles.require_operator(request)
        force = request.query_params.get("force", "false").lower() in ("true", "1")
        await pool.remove_node(request.query_params.get("url", ""), force=force)
        return JSONResponse({"ok": True})

    return [
        Route(HEALTH_PATH, healthz, methods=["GET"]),
        Route(METRICS_PATH, metrics, methods=["GET"]),
        Route(_STATUS_PATH, status, methods=["GET"]),
        Route(_NODES_PATH, put_node, methods=["POST"]),
        Route(_NODES_PATH, remove_node, methods=["DELETE"]),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    store: Path
    token: str = ""  # that clients present; "" lets everyone in
    nodes: tuple[str, ...] = ()
    node_token: str = ""  # of the nodes, and of operators; "" sends none and lets no client add nodes
    node_tls: ClientTls = field(default_factory=ClientTls)
    max_per_node: int = 0  # sandboxes; 0: the node's own capacity


async def run(options: PoolOptions, listening: Listening, *, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; leases outlive the process. `on_listening` gets the server's URL.

    Raises ProviderUnavailable when the options cannot be used.
    """
    if options.token and options.token == options.node_token:
        raise ProviderUnavailable(
            "clients and nodes have the same token, so that every client could act as a node: give "
            "--node-token-file another one than --token-file",
            retryable=False,
        )
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
