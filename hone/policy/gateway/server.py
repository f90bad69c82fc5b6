"""The HTTP server: which path is what, who may do it, and the error that everything else gets."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from hone.policy.gateway.delivery import deliver, json_reply, refuse
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

BODY_S = 120.0  # the longest that the body of a request may take to arrive
_log = logging.getLogger(__name__)
_COMPLETIONS, _MESSAGES, _RESPONSES = ChatCompletions(), AnthropicMessages(), Responses()
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    gateway: Gateway, *, model: str, admin: Admin | None, max_body_bytes: int, quiet_s: float
) -> web.Application:
    """The application. `model` is the one name that `/v1/models` lists; requests may name any."""

    async def completions(request: web.Request) -> web.StreamResponse:
        return await answer(request, _COMPLETIONS)

    async def messages(request: web.Request) -> web.StreamResponse:
        return await answer(request, _MESSAGES)

    async def responses(request: web.Request) -> web.StreamResponse:
        return await answer(request, _RESPONSES)

    async def answer(request: web.Request, wire: Format) -> web.StreamResponse:
        session = _session(gateway, request)
        asked = wire.read(read_body(await _data(request)), session)
        return await deliver(request, wire, session, asked, quiet_s=quiet_s)

    async def count(request: web.Request) -> web.StreamResponse:
        session = _session(gateway, request)
        asked = _MESSAGES.read(read_body(await _data(request)), session)
        return json_reply({"input_tokens": session.measure(asked)})

    async def models(request: web.Request) -> web.StreamResponse:
        _session(gateway, request)
        return json_reply({"object": "list", "data": [_model(model)], "has_more": False, **_ends(model)})

    async def one_model(request: web.Request) -> web.StreamResponse:
        _session(gateway, request)
        if request.match_info["model"] != model:
            raise GatewayError(Problem.NOT_FOUND, f"there is one model here: {model}")
        return json_reply(_model(model))

    app = web.Application(client_max_size=max_body_bytes, middlewares=[_refusing])
    for base in ("", "/s/{key}"):
        app.router.add_post(f"{base}/v1/chat/completions", completions)
        app.router.add_post(f"{base}/v1/messages", messages)
        app.router.add_post(f"{base}/v1/messages/count_tokens", count)
        app.router.add_post(f"{base}/v1/responses", responses)
        app.router.add_get(f"{base}/v1/models", models)
        app.router.add_get(f"{base}/v1/models/{{model:.+}}", one_model)
    if admin is not None:
        _add_admin(app, gateway, admin)
    return app


def _add_admin(app: web.Application, gateway: Gateway, admin: Admin) -> None:
    async def create(request: web.Request) -> web.StreamResponse:
        _require(admin, request)
        session = admin.open(_limits(await _data(request)) if request.can_read_body else None)
        return json_reply({**session_json(session), "key": session.key, "path": session.path}, 201)

    async def listing(request: web.Request) -> web.StreamResponse:
        _require(admin, request)
        return json_reply({"sessions": [session_json(session) for session in gateway.sessions]})

    async def show(request: web.Request) -> web.StreamResponse:
        return json_reply(session_json(find(request)))

    async def tree(request: web.Request) -> web.StreamResponse:
        return json_reply(tree_json(find(request)))

    async def delete(request: web.Request) -> web.StreamResponse:
        session = find(request)
        await admin.close(session)
        return json_reply(session_json(session))

    def find(request: web.Request) -> Session:
        _require(admin, request)
        session = gateway.find_by_id(request.match_info["id"])
        if session is None:
            raise GatewayError(Problem.NOT_FOUND, "there is no such session")
        return session

    app.router.add_post("/sessions", create)
    app.router.add_get("/sessions", listing)
    app.router.add_get("/sessions/{id}", show)
    app.router.add_get("/sessions/{id}/tree", tree)
    app.router.add_delete("/sessions/{id}", delete)


@web.middleware
async def _refusing(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every refusal, in the words of the format that the path belongs to."""
    wire: Format = _MESSAGES if "/v1/messages" in request.path else _COMPLETIONS
    try:
        return await handler(request)
    except GatewayError as error:
        return refuse(wire, error)
    except web.HTTPRequestEntityTooLarge as error:
        return refuse(wire, GatewayError(Problem.TOO_LARGE, f"the request is too large: {error.text}"))
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        return refuse(wire, GatewayError(Problem.NOT_FOUND, f"there is no {request.method} {request.path}"))
    except web.HTTPException:
        raise
    except Exception:
        _log.exception("a request failed unexpectedly")
        return refuse(wire, defect())


def _session(gateway: Gateway, request: web.Request) -> Session:
    """The session that the request's path or key opens."""
    session = gateway.find(request.match_info.get("key") or _bearer(request))
    if session is None:
        raise GatewayError(
            Problem.UNAUTHORIZED, "no session has this key: it is wrong, or the session is over"
        )
    return session


def _limits(data: bytes) -> SessionLimits:
    """Those that the body of a new session's request asks for: {"limits": {...}}."""
    body = read_body(data)
    try:
        return SessionLimits.model_validate(body.pop("limits", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("limits", *map(str, first["loc"])))
        raise invalid(f"{where}: {first['msg']}", where) from None


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key", "")


def _require(admin: Admin, request: web.Request) -> None:
    given = _bearer(request).encode("utf-8", "surrogatepass")
    if admin.token and not hmac.compare_digest(given, admin.token.encode()):
        raise GatewayError(Problem.UNAUTHORIZED, "the token that administers sessions is missing or wrong")


async def _data(request: web.Request) -> bytes:
    """The bytes of the body. Raises GatewayError, HTTPRequestEntityTooLarge."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise invalid(f"the body of the request did not arrive within {BODY_S:.0f} s") from None


def _model(name: str) -> Json:
    """In the form of OpenAI and of Anthropic at once."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "hone"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _ends(name: str) -> Json:
    return {"first_id": name, "last_id": name}
