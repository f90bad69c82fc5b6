"""The gateway's HTTP application: routes, access and errors."""

from __future__ import annotations

import hmac

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from hone.policy.gateway.delivery import deliver, error_response, json_response
from hone.policy.gateway.errors import GatewayError, Problem, defect, invalid
from hone.policy.gateway.gateway import Admin, Gateway
from hone.policy.gateway.session import Session
from hone.policy.gateway.settings import SessionLimits
from hone.policy.gateway.tree import session_json, tree_json
from hone.policy.gateway.wire.completions import ChatCompletions
from hone.policy.gateway.wire.fields import Json, read_body
from hone.policy.gateway.wire.format import Format
from hone.policy.gateway.wire.messages import AnthropicMessages
from hone.policy.gateway.wire.responses import Responses
from hone.utils.http_server import BodyTooLarge, body_timeout, make_app, stream_body

_BODY_S = 120.0  # the longest that the body of a request may take to arrive
_COMPLETIONS, _MESSAGES, _RESPONSES = ChatCompletions(), AnthropicMessages(), Responses()


def make_gateway_app(
    gateway: Gateway, *, model: str, admin: Admin | None, max_body_bytes: int, keep_alive_s: float
) -> Starlette:
    """Return the application. `/v1/models` lists `model` only; requests may name any model."""

    async def completions(request: Request) -> Response:
        return await answer(request, _COMPLETIONS)

    async def messages(request: Request) -> Response:
        return await answer(request, _MESSAGES)

    async def responses(request: Request) -> Response:
        return await answer(request, _RESPONSES)

    async def answer(request: Request, wire: Format) -> Response:
        session = _session(gateway, request)
        asked = wire.read(read_body(await _data(request, max_body_bytes)), session)
        return await deliver(wire, session, asked, keep_alive_s=keep_alive_s)

    async def count(request: Request) -> Response:
        session = _session(gateway, request)
        asked = _MESSAGES.read(read_body(await _data(request, max_body_bytes)), session)
        return json_response({"input_tokens": session.measure(asked)})

    async def models(request: Request) -> Response:
        _session(gateway, request)
        return json_response({"object": "list", "data": [_model(model)], "has_more": False, **_ends(model)})

    async def one_model(request: Request) -> Response:
        _session(gateway, request)
        if request.path_params["model"] != model:
            raise GatewayError(Problem.NOT_FOUND, f"this gateway serves one model: {model}")
        return json_response(_model(model))

    routes = [] if admin is None else _admin_routes(gateway, admin, max_body_bytes)
    for base in ("", "/s/{key}"):
        routes += [
            Route(f"{base}/v1/chat/completions", completions, methods=["POST"]),
            Route(f"{base}/v1/messages", messages, methods=["POST"]),
            Route(f"{base}/v1/messages/count_tokens", count, methods=["POST"]),
            Route(f"{base}/v1/responses", responses, methods=["POST"]),
            Route(f"{base}/v1/models", models),
            Route(f"{base}/v1/models/{{model:path}}", one_model),
        ]
    app = make_app(routes, error_response=_error_response, expected=(GatewayError, BodyTooLarge))
    app.router.redirect_slashes = False  # a redirect would answer an unknown path with 307
    return app


def _admin_routes(gateway: Gateway, admin: Admin, max_body_bytes: int) -> list[Route]:
    async def create(request: Request) -> Response:
        _require(admin, request)
        body = await _data(request, max_body_bytes)
        session = admin.open(_limits(body) if body else None)
        return json_response({**session_json(session), "key": session.key, "path": session.path}, 201)

    async def listing(request: Request) -> Response:
        _require(admin, request)
        return json_response({"sessions": [session_json(session) for session in gateway.sessions]})

    async def show(request: Request) -> Response:
        return json_response(session_json(find(request)))

    async def tree(request: Request) -> Response:
        return json_response(tree_json(find(request)))

    async def delete(request: Request) -> Response:
        session = find(request)
        await admin.close(session)
        return json_response(session_json(session))

    def find(request: Request) -> Session:
        _require(admin, request)
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


def _error_response(connection: HTTPConnection, error: Exception) -> Response:
    """Return an error in the format that the path belongs to."""
    path = connection.scope["path"]
    if isinstance(error, BodyTooLarge):
        error = GatewayError(Problem.TOO_LARGE, f"the request is too large: {error}")
    elif isinstance(error, HTTPException):
        error = GatewayError(Problem.NOT_FOUND, f"there is no {connection.scope['method']} {path}")
    elif not isinstance(error, GatewayError):
        error = defect()
    return error_response(_MESSAGES if "/v1/messages" in path else _COMPLETIONS, error)


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
    body = read_body(data)
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
    return request.headers.get("x-api-key", "")


def _require(admin: Admin, request: Request) -> None:
    given = _bearer(request).encode("utf-8", "surrogatepass")
    if admin.token and not hmac.compare_digest(given, admin.token.encode()):
        raise GatewayError(Problem.UNAUTHORIZED, "the token that administers sessions is missing or wrong")


async def _data(request: Request, limit: int) -> bytes:
    """Return the body of a request. Raises GatewayError, BodyTooLarge."""
    try:
        async with body_timeout(_BODY_S):
            return b"".join([chunk async for chunk in stream_body(request, limit)])
    except ValueError as error:
        raise invalid(str(error)) from None


def _model(name: str) -> Json:
    """In the form of OpenAI and of Anthropic at once."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "hone"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _ends(name: str) -> Json:
    return {"first_id": name, "last_id": name}
