"""The version 1 endpoints of a node (`hone.sandbox.remote.wire`)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import IO, Any
from urllib.parse import parse_qs

import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hone.sandbox import trees
from hone.sandbox.contract import Sandbox, SandboxError, SandboxLost, Unauthorized
from hone.sandbox.node.commands import ExecStream, run
from hone.sandbox.node.contents import receive_tree
from hone.sandbox.node.node import Node
from hone.sandbox.node.sandboxes import SandboxEntry
from hone.sandbox.remote.errors import error_response, to_body
from hone.sandbox.remote.tunnel import PROTOCOL
from hone.sandbox.remote.wire import (
    IDEMPOTENCY_HEADER,
    INPUT_HEADER,
    CreateReply,
    CreateRequest,
    ExecRequest,
    NodeReply,
    RenewReply,
    RenewRequest,
    StartReply,
)
from hone.utils.http_memory import LARGE
from hone.utils.http_server import (
    BodyTooLarge,
    body_timeout,
    is_same_token,
    model_response,
    presented_token,
    read_body,
    read_model,
    stream_body,
    while_connected,
)
from hone.utils.json_models import read_json

JSON_MAX = 1 << 20  # bytes of a request without file content
INPUT_MAX = 72 << 20  # bytes of a standard input that follows its JSON
FILE_MAX = 256 << 20
_CHUNK = 1 << 18
_MIB = 1 << 20
_MODE_MAX = 0o7777

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def make_routes(node: Node) -> list[BaseRoute]:
    """Return the endpoints, those that are used most first.

    Endpoints of one sandbox accept its capability or the server's token, the others the latter alone.
    """
    return [
        *_command_routes(node),
        *_file_routes(node),
        *_sandbox_routes(node),
        *_server_routes(node),
        _tunnel_route(node),
    ]


def _find(node: Node, request: Request) -> SandboxEntry:
    return node.sandboxes.find(request.path_params["sandbox_id"], presented_token(request))


def require_server_token(node: Node) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator for endpoints that accept the server's token only."""
    token = node.options.token

    def wrap(endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            if token and not is_same_token(presented_token(request), token):
                raise Unauthorized("the token is missing or wrong")
            return await endpoint(request)

        return guarded

    return wrap


def _server_routes(node: Node) -> list[Route]:
    trusted = require_server_token(node)

    async def show(request: Request) -> Response:
        memory = psutil.virtual_memory()
        facts = NodeReply(
            provider=node.options.provider_name,
            boot=node.boot,
            capacity=node.sandboxes.capacity,
            memory_mib=memory.total // _MIB,
            free_memory_mib=memory.available // _MIB,
            images=node.probe.images,
            sandboxes=[entry.row() for entry in node.sandboxes],
            accepting=node.sandboxes.accepting,
        )
        return model_response(facts)

    async def renew(request: Request) -> Response:
        payload = await read_model(request, RenewRequest, JSON_MAX)
        return model_response(RenewReply(lost=node.sandboxes.renew(payload.ids, payload.ttl_s)))

    async def create(request: Request) -> Response:
        body = await read_body(request, JSON_MAX)
        payload = read_json(CreateRequest, body)

        async def make() -> bytes:
            return _created(await node.sandboxes.create(payload))

        return await _once(node, "", request, body, make)

    async def undo(request: Request) -> Response:
        made = await node.journal.cancel(("", _key(request)))
        if made is not None:
            created = CreateReply.model_validate_json(made)
            await node.sandboxes.end(node.sandboxes.find(created.id, created.capability))
        return JSONResponse({"ok": True})

    return [
        Route("/v1/node", trusted(show), methods=["GET"]),
        Route("/v1/renewals", trusted(renew), methods=["POST"]),
        Route("/v1/sandboxes", trusted(create), methods=["POST"]),
        Route("/v1/sandboxes", trusted(undo), methods=["DELETE"]),
    ]


def _tunnel_route(node: Node) -> WebSocketRoute:
    """Return the endpoint at which a client attaches WebSockets to the tunnel of its sandbox."""

    async def attach(websocket: WebSocket) -> None:
        try:
            if PROTOCOL not in websocket.scope["subprotocols"]:
                raise ValueError(f"a tunnel needs the WebSocket protocol {PROTOCOL}: update the client")
            entry = node.sandboxes.find(websocket.path_params["sandbox_id"], presented_token(websocket))
            node.sandboxes.use(entry)
            if entry.tunnel is None:
                raise SandboxLost("its spec names no tunnel")
        except (SandboxError, ValueError) as error:
            node.metrics.refuse(to_body(error)[1].code)
            await websocket.send_denial_response(error_response(error))
            return
        await websocket.accept(PROTOCOL)
        await entry.tunnel.attach(websocket)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await websocket.close()

    return WebSocketRoute("/v1/sandboxes/{sandbox_id}/tunnel", attach)


def _created(entry: SandboxEntry) -> bytes:
    sandbox = entry.sandbox
    created = CreateReply(
        id=entry.id,
        capability=entry.capability,
        workdir=sandbox.spec.workdir if sandbox else "",
        enforced=dict(sandbox.enforced) if sandbox else {},
    )
    return created.model_dump_json().encode()


def _sandbox_routes(node: Node) -> list[Route]:
    async def give(request: Request) -> Response:
        entry = _find(node, request)
        digest = request.path_params["digest"]
        if digest not in entry.request.spec.contents():
            raise ValueError(f"the spec of this sandbox does not name the content {digest}")
        async with body_timeout():
            await node.contents.put(digest, stream_body(request, trees.max_wire_bytes()))
        return JSONResponse({"ok": True})

    async def start(request: Request) -> Response:
        entry = _find(node, request)
        if missing := await node.sandboxes.start(entry):
            return model_response(StartReply(missing=missing, workdir="", enforced={}))
        sandbox = node.sandboxes.use(entry)
        return model_response(
            StartReply(missing=[], workdir=sandbox.spec.workdir, enforced=dict(sandbox.enforced))
        )

    async def close(request: Request) -> Response:
        await node.sandboxes.end(_find(node, request))
        return JSONResponse({"ok": True})

    return [
        Route("/v1/sandboxes/{sandbox_id}/content/{digest}", give, methods=["PUT"]),
        Route("/v1/sandboxes/{sandbox_id}/start", start, methods=["POST"]),
        Route("/v1/sandboxes/{sandbox_id}", close, methods=["DELETE"]),
    ]


def _command_routes(node: Node) -> list[Route]:
    async def execute(request: Request) -> Response:
        entry = _find(node, request)
        body, payload = await _read_exec(request)
        sandbox = node.sandboxes.use(entry, payload.timeout_s)
        if payload.stream:
            if IDEMPOTENCY_HEADER in request.headers:
                raise ValueError("a streamed command cannot be repeated: send no Idempotency-Key")
            return ExecStream(lambda on_output: run(sandbox, payload, node.metrics, on_output))

        async def do() -> bytes:
            return (await run(sandbox, payload, node.metrics)).model_dump_json().encode()

        return await _once(node, entry.id, request, body, do)

    async def cancel(request: Request) -> Response:
        entry = _find(node, request)
        await node.journal.cancel((entry.id, _key(request)))
        return JSONResponse({"ok": True})

    return [
        Route("/v1/sandboxes/{sandbox_id}/exec", execute, methods=["POST"]),
        Route("/v1/sandboxes/{sandbox_id}/exec", cancel, methods=["DELETE"]),
    ]


async def _once(
    node: Node,
    whose: str,
    request: Request,
    body: bytes,
    operation: Callable[[], Coroutine[Any, Any, bytes]],
) -> Response:
    """Run `operation` once per idempotency key; without a key, cancel it when the client disconnects.

    `body` identifies the request: it may be a digest.
    """
    if IDEMPOTENCY_HEADER in request.headers:
        done = await node.journal.once((whose, _key(request)), body, operation)
    else:
        done = await while_connected(request.receive, operation())
    return Response(done, media_type="application/json")


async def _read_exec(request: Request) -> tuple[bytes, ExecRequest]:
    """Return the body, or its digest, and the command with its standard input."""
    size = int(request.headers.get(INPUT_HEADER, "0"))
    if not 0 <= size <= INPUT_MAX:
        raise BodyTooLarge(f"the standard input is larger than {INPUT_MAX} bytes: send it as a file")
    body = await read_body(request, JSON_MAX + size)
    payload = read_json(ExecRequest, body[: len(body) - size] if size else body)
    if size:
        payload = payload.model_copy(update={"stdin": body[-size:]})
    return await _digest(body) if len(body) > LARGE else body, payload


async def _digest(body: bytes) -> bytes:
    """Return the SHA-256 of a large body, computed in a thread."""
    return (await asyncio.to_thread(hashlib.sha256, body)).digest()


def _key(request: Request) -> str:
    return request.headers.get(IDEMPOTENCY_HEADER, "")


def _file_routes(node: Node) -> list[Route]:
    async def read(request: Request) -> Response:
        sandbox = node.sandboxes.use(_find(node, request))
        data = await while_connected(request.receive, sandbox.read(_path(request)))
        return Response(data, media_type="application/octet-stream")

    async def write(request: Request) -> Response:
        sandbox = node.sandboxes.use(_find(node, request))
        body = await read_body(request, FILE_MAX)
        await sandbox.write(_path(request), body, mode=permissions(request))
        return JSONResponse({"ok": True})

    async def upload(request: Request) -> Response:
        sandbox = node.sandboxes.use(_find(node, request))
        async with node.staging() as folder:
            async with body_timeout():
                content, _ = await receive_tree(stream_body(request, trees.max_wire_bytes()), folder)
            await sandbox.upload(content, _path(request))
        return JSONResponse({"ok": True})

    async def download(request: Request) -> Response:
        sandbox = node.sandboxes.use(_find(node, request))
        file = await while_connected(request.receive, _packed_out(node, sandbox, _path(request)))
        headers = {"content-length": str(file.tell())}
        return StreamingResponse(_content(file), headers=headers, media_type="application/x-tar")

    return [
        Route("/v1/sandboxes/{sandbox_id}/files", read, methods=["GET"]),
        Route("/v1/sandboxes/{sandbox_id}/files", write, methods=["PUT"]),
        Route("/v1/sandboxes/{sandbox_id}/archive", upload, methods=["PUT"]),
        Route("/v1/sandboxes/{sandbox_id}/archive", download, methods=["GET"]),
    ]


async def _packed_out(node: Node, sandbox: Sandbox, path: str) -> IO[bytes]:
    """Return a temporary file with the archive of a path in the sandbox, positioned at its end."""
    with contextlib.ExitStack() as on_failure:
        file = on_failure.enter_context(tempfile.TemporaryFile(dir=node.directory))
        async with node.staging() as folder:
            await sandbox.download(path, folder / trees.TOP)
            await asyncio.to_thread(trees.pack, folder / trees.TOP, file)
        on_failure.pop_all()
        return file


def _path(request: Request) -> str:
    if not (path := _query(request, "path", "")):
        raise ValueError("the query parameter `path` is missing")
    return path


def permissions(request: Request) -> int:
    """Return the permissions that the query asks for, in octal digits."""
    mode = int(_query(request, "mode", "644"), 8)
    if not 0 <= mode <= _MODE_MAX:
        raise ValueError(f"the query parameter `mode` must be from 0 to {_MODE_MAX:o}")
    return mode


def _query(request: Request, name: str, default: str) -> str:
    """Return a query parameter; bytes that are not UTF-8 are decoded as `os.fsdecode` does."""
    text = request.scope["query_string"].decode("latin-1")
    return parse_qs(text, errors="surrogateescape").get(name, [default])[0]


async def _content(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        file.seek(0)
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
