"""The gateway's HTTP server: addresses, routes, access and errors."""

from __future__ import annotations

import errno
import functools
import hmac
import os
import socket as sockets
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from hone.policy.gateway.chat_request import ChatRequest
from hone.policy.gateway.delivery import KEEP_ALIVE_S, deliver, error_response, json_response
from hone.policy.gateway.errors import GatewayError, Problem, defect, invalid
from hone.policy.gateway.gateway import Admin, Gateway
from hone.policy.gateway.session import Session
from hone.policy.gateway.settings import SessionLimits
from hone.policy.gateway.wire.completions import ChatCompletions
from hone.policy.gateway.wire.fields import Json, read_fields
from hone.policy.gateway.wire.format import Format
from hone.policy.gateway.wire.generate_content import GenerateContent
from hone.policy.gateway.wire.messages import AnthropicMessages
from hone.policy.gateway.wire.responses import Responses
from hone.policy.workers import run_in_worker
from hone.types import Call
from hone.utils import clock
from hone.utils.http_memory import ServerBusy, release_body
from hone.utils.http_server import BodyTooLarge, address, body_timeout, listen, make_app, read_body, serving

_BODY_S = 120.0  # time limit of a request's body
_LIMITS_MAX = 1 << 16  # bytes of the body that opens a session
_COMPLETIONS, _MESSAGES = ChatCompletions(), AnthropicMessages()
_GENERATE = GenerateContent(stream=False)
_FORMATS: dict[str, Format] = {
    "v1/chat/completions": _COMPLETIONS,
    "v1/messages": _MESSAGES,
    "v1/responses": Responses(),
    "v1beta/models/{model}:generateContent": _GENERATE,
    "v1beta/models/{model}:streamGenerateContent": GenerateContent(stream=True),
}


@asynccontextmanager
async def open_gateway(
    *,
    socket: Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    model: str = "hone",
    admin: Admin | None = None,
    max_body_bytes: int = 8 << 20,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> AsyncGenerator[Gateway]:
    """Serve while the block runs, then close all sessions.

    Only the owner of `socket` can connect to it; `port` 0 takes a free port. Without `admin`, only
    `Gateway.open` opens sessions. A stream sends a keep-alive event after each `keep_alive_s` seconds without
    a reply. Raises OSError when it cannot listen, ValueError without `socket` and `port`.
    """
    if socket is None and port is None:
        raise ValueError("the gateway has no address: pass a port or a socket")
    with ExitStack() as opened:
        listeners: list[sockets.socket] = []
        if port is not None:
            listeners.append(opened.enter_context(listen(host, port)))
        if socket is not None:
            listeners.append(opened.enter_context(_unix(socket)))
            opened.callback(socket.unlink, missing_ok=True)
        gateway = Gateway(url=None if port is None else address(listeners[0]), socket=socket)
        app = _make_app(
            gateway, model=model, admin=admin, max_body_bytes=max_body_bytes, keep_alive_s=keep_alive_s
        )
        async with serving(app, listeners, on_stop=gateway.close_all):
            yield gateway


def _unix(path: Path) -> sockets.socket:
    """Return a bound socket that only its owner can connect to; replace one that a dead process left."""
    if path.is_socket() and not _is_served(path):
        path.unlink()
    listener = sockets.socket(sockets.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens: no other user can connect in between
    except OSError as error:
        listener.close()
        raise OSError(error.errno or errno.EINVAL, error.strerror or str(error), os.fspath(path)) from error
    return listener


def _is_served(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _make_app(
    gateway: Gateway, *, model: str, admin: Admin | None, max_body_bytes: int, keep_alive_s: float
) -> Starlette:
    """Return the application. `/v1/models` lists `model` only; requests may name any model."""
    card = {  # in the form of OpenAI and of Anthropic at once
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "hone",
        "type": "model",
        "display_name": model,
        "created_at": "1970-01-01T00:00:00Z",
    }

    async def answer(request: Request, wire: Format) -> Response:
        session = _session(gateway, request)
        chat_request = await _read(request, max_body_bytes, wire, session)
        return await deliver(wire, session, chat_request, keep_alive_s=keep_alive_s)

    async def count(request: Request) -> Response:
        session = _session(gateway, request)
        chat_request = await _read(request, max_body_bytes, _MESSAGES, session)
        return json_response({"input_tokens": await session.measure(chat_request)})

    async def healthz(request: Request) -> Response:
        return json_response({"ok": True})

    async def models(request: Request) -> Response:
        _session(gateway, request)
        page = {"has_more": False, "first_id": model, "last_id": model}
        return json_response({"object": "list", "data": [card], **page})

    async def one_model(request: Request) -> Response:
        _session(gateway, request)
        if request.path_params["model"] != model:
            raise GatewayError(Problem.NOT_FOUND, f"this gateway serves one model: {model}")
        return json_response(card)

    routes = [Route("/healthz", healthz)]
    routes += [] if admin is None else _admin_routes(gateway, admin, max_body_bytes)
    for base in ("", "/s/{key}"):
        for path, wire in _FORMATS.items():
            routes.append(Route(f"{base}/{path}", functools.partial(answer, wire=wire), methods=["POST"]))
        routes += [
            Route(f"{base}/v1/messages/count_tokens", count, methods=["POST"]),
            Route(f"{base}/v1/models", models),
            Route(f"{base}/v1/models/{{model:path}}", one_model),
        ]
    app = make_app(routes, error_response=_error_response, expected=(GatewayError, BodyTooLarge))
    app.router.redirect_slashes = False  # a redirect would answer an unknown path with 307
    return app


def _admin_routes(gateway: Gateway, admin: Admin, max_body_bytes: int) -> list[Route]:
    async def create(request: Request) -> Response:
        _require_token(admin, request)
        body = await _data(request, min(max_body_bytes, _LIMITS_MAX))
        session = admin.open(_limits(body) if body else None)
        return json_response({**_session_json(session), "key": session.key, "path": session.path}, 201)

    async def listing(request: Request) -> Response:
        _require_token(admin, request)
        return json_response({"sessions": [_session_json(session) for session in gateway.sessions]})

    async def show(request: Request) -> Response:
        return json_response(_session_json(find(request)))

    async def tree(request: Request) -> Response:
        session = find(request)
        return Response(await run_in_worker(_tree_json, session), media_type="application/json")

    async def delete(request: Request) -> Response:
        session = find(request)
        await admin.close(session)
        return json_response(_session_json(session))

    def find(request: Request) -> Session:
        _require_token(admin, request)
        session = gateway.find_by_id(request.path_params["id"])
        if session is None:
            raise GatewayError(Problem.NOT_FOUND, "there is no such session")
        return session

    return [
        Route("/sessions", create, methods=["POST"]),
        Route("/sessions", listing),
        Route("/sessions/{id}", show),
        Route("/sessions/{id}/tree", tree),
        Route("/sessions/{id}", delete, methods=["DELETE"]),
    ]


def _session_json(session: Session) -> Json:
    """Return the state of a session, without its key."""
    return {
        "id": session.id,
        "calls": len(session.exchanges),
        "retries": session.retries,
        "sampled_tokens": session.sampled_tokens,
        "seconds": clock.monotonic() - session.opened,
        "limits": session.limits.model_dump(),
        "ended": session.ended,
        "error": None if session.error is None else str(session.error),
    }


def _tree_json(session: Session) -> bytes:
    """Return the exact token tree and the calls that made it, as JSON; in a thread, node by node.

    `logprobs` and `version` of a node are empty if it was not sampled. `fork` of a call is the reason why its
    prompt does not continue the tip of the conversation; null if it does, or the chat keeps no calls.
    """
    calls: Sequence[Call] = getattr(session.chat, "calls", ())
    forks = {call.node: call.fork for call in list(calls)}
    nodes = (
        {
            "parent": node.parent,
            "tokens": node.tokens.tolist(),
            "sampled": node.sampled,
            "logprobs": node.logprobs.tolist(),
            "version": node.version.tolist(),
            "turn": node.turn,
        }
        for node in list(session.chat.tree.nodes)
    )
    exchanges = (
        {
            "index": exchange.index,
            "node": exchange.reply.node,
            "purpose": exchange.purpose,
            "fork": forks.get(exchange.reply.node),
            "retries": exchange.retries,
            "prompt_tokens": exchange.reply.prompt_tokens,
            "sampled_tokens": exchange.reply.sampled_tokens,
            "truncated": exchange.reply.truncated,
            "seconds": exchange.ended - exchange.started,
        }
        for exchange in list(session.exchanges)
    )
    return b'{"id":%b,"nodes":[%b],"calls":[%b]}' % (
        to_json(session.id),
        b",".join(map(to_json, nodes)),
        b",".join(map(to_json, exchanges)),
    )


def _error_response(connection: HTTPConnection, error: Exception) -> Response:
    """Return an error in the format that the path belongs to."""
    path = connection.scope["path"]
    if isinstance(error, BodyTooLarge):
        error = GatewayError(Problem.TOO_LARGE, f"the request is too large: {error}")
    elif isinstance(error, HTTPException):
        error = GatewayError(Problem.NOT_FOUND, f"there is no {connection.scope['method']} {path}")
    elif not isinstance(error, GatewayError):
        error = defect()
    wire = _GENERATE if "/v1beta/" in path else _MESSAGES if "/v1/messages" in path else _COMPLETIONS
    return error_response(wire, error)


def _session(gateway: Gateway, request: Request) -> Session:
    """Return the session of the key in the path or the headers. Raises GatewayError."""
    session = gateway.find(request.path_params.get("key") or _bearer(request))
    if session is None:
        raise GatewayError(
            Problem.UNAUTHORIZED, "no session has this key: it is wrong, or the session is closed"
        )
    return session


def _limits(data: bytes) -> SessionLimits:
    """Return the limits in the body of a request for a new session: {"limits": {...}}."""
    body = read_fields(data)
    try:
        return SessionLimits.model_validate(body.pop("limits", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("limits", *map(str, first["loc"])))
        raise invalid(f"{where}: {first['msg']}", where) from None


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key") or request.headers.get("x-goog-api-key", "")


def _require_token(admin: Admin, request: Request) -> None:
    given = _bearer(request).encode("utf-8", "surrogatepass")
    if admin.token and not hmac.compare_digest(given, admin.token.encode()):
        raise GatewayError(Problem.UNAUTHORIZED, "the token that administers sessions is missing or wrong")


async def _read(request: Request, limit: int, wire: Format, session: Session) -> ChatRequest:
    data = await _data(request, limit)
    named = {name: value for name, value in request.path_params.items() if name == "model"}
    try:
        size = len(data)
        return await session.parse(
            size, lambda: wire.read(read_fields(data, wire.encoded_field) | named, session)
        )
    finally:
        release_body(request)  # the reply may take minutes


async def _data(request: Request, limit: int) -> bytes:
    """Return the body of a request. Raises GatewayError, BodyTooLarge."""
    try:
        async with body_timeout(_BODY_S):
            return await read_body(request, limit)
    except ServerBusy as error:
        raise GatewayError(Problem.BUSY, str(error)) from None
    except ValueError as error:
        raise invalid(str(error)) from None
