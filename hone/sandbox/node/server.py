"""The node server: the endpoints of a node, listening."""

from __future__ import annotations

import asyncio
from pathlib import Path
from socket import socket

import prometheus_client
from fastapi import APIRouter, Depends, FastAPI
from fastapi.requests import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from hone.sandbox.contract import Provider
from hone.sandbox.node import api, exec_server
from hone.sandbox.node.node import Node, NodeOptions, open_node
from hone.sandbox.remote.auth import is_same, presented, require_token
from hone.sandbox.remote.serving import BoundedRequests, Tls, handle_errors, serve

_STATES = ("waiting", "starting", "running", "ending")


def make_app(node: Node) -> ASGIApp:
    app = FastAPI(openapi_url=None)
    app.router.routes.extend([*api.make_routes(node), api.make_tunnel_route(node)])
    app.include_router(exec_server.make_router(node))
    app.include_router(_watching(node))
    handle_errors(app, node.metrics.refuse)
    return BoundedRequests(app, node.options.max_requests, node.metrics.refuse)


def _watching(node: Node) -> APIRouter:
    router = APIRouter()
    token = node.options.token

    @router.get("/healthz")
    async def healthz(request: Request) -> Response:
        """For anyone, whether the provider works, as the newest probe found; with the token, why not."""
        why = node.probe.failure()
        body: dict[str, object] = {
            "ok": not why,
            "running_containers": str(node.sandboxes.states()["running"]),
        }
        if why and (not token or is_same(presented(request), token)):
            body["error"] = why
        return JSONResponse(body, 503 if why else 200)

    @router.get("/metrics", dependencies=[Depends(require_token(token))])
    async def metrics() -> Response:
        states = node.sandboxes.states()
        for state in _STATES:
            node.metrics.sandboxes.labels(state).set(states[state])
        text = prometheus_client.generate_latest(node.metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return router


async def run_node(
    provider: Provider,
    options: NodeOptions,
    listener: socket,
    *,
    directory: Path,
    stop: asyncio.Event,
    tls: Tls | None = None,
) -> None:
    """Serve until `stop` is set, then end everything that was started. Raises ProviderUnavailable."""
    async with open_node(provider, options, directory) as node:
        await serve(make_app(node), listener, stop=stop, on_stop=node.stop, tls=tls)
