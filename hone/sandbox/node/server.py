"""The node server: its HTTP application and its process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import prometheus_client
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hone.sandbox.contract import Provider
from hone.sandbox.node import api, exec_server
from hone.sandbox.node.node import Node, NodeOptions, open_node
from hone.sandbox.remote.server import HEALTH_PATH, METRICS_PATH, Listening, make_server_app
from hone.utils.http_server import is_same_token, presented_token, serving, stop_event

_STATES = ("waiting", "starting", "running", "ending")


def make_node_app(node: Node) -> ASGIApp:
    routes = [*api.make_routes(node), *exec_server.make_routes(node), *_monitoring_routes(node)]
    return make_server_app(routes, count_error=node.metrics.refuse, max_requests=node.options.max_requests)


def _monitoring_routes(node: Node) -> list[Route]:
    token = node.options.token

    async def healthz(request: Request) -> Response:
        """Tell anyone whether the newest probe succeeded; with the token, also why not."""
        why = node.probe.error
        body: dict[str, object] = {
            "ok": not why,
            "running_containers": str(node.sandboxes.states()["running"]),
        }
        if why and (not token or is_same_token(presented_token(request), token)):
            body["error"] = why
        return JSONResponse(body, 503 if why else 200)

    async def metrics(request: Request) -> Response:
        states = node.sandboxes.states()
        for state in _STATES:
            node.metrics.sandboxes.labels(state).set(states[state])
        text = prometheus_client.generate_latest(node.metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return [Route(HEALTH_PATH, healthz), Route(METRICS_PATH, api.require_server_token(node)(metrics))]


async def run(
    provider: Provider,
    options: NodeOptions,
    listening: Listening,
    *,
    directory: Path,
    on_listening: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then end every sandbox. `on_listening` gets the server's URL.

    Raises ProviderUnavailable when the options cannot be used, or the provider does not open.
    """
    with listening.open(options.token) as listener:
        stop = stop_event()
        on_listening(listening.url(listener))
        async with (
            open_node(provider, options, directory) as node,
            serving(make_node_app(node), [listener], on_stop=node.stop, tls=listening.tls),
        ):
            await stop.wait()
