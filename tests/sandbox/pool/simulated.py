"""A node without sandboxes: what a node server promises the pool, with every way in which it may fail."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hone.sandbox.client.api import NodeClient, Unreachable
from hone.sandbox.contract import ProviderUnavailable, SandboxLost
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from hone.sandbox.pool.server import make_pool_app
from hone.sandbox.remote.errors import EXPECTED, error_response
from hone.sandbox.remote.wire import (
    IDEMPOTENCY_HEADER,
    CreateReply,
    CreateRequest,
    NodeReply,
    RenewReply,
    RenewRequest,
    SandboxRow,
)
from hone.utils import http_server
from hone.utils.clock import monotonic
from hone.utils.http_client import new_session
from hone.utils.http_server import model_response

FAST = Timing(
    probe_s=0.2,
    probe_timeout_s=2.0,
    start_timeout_s=5.0,
    settle_s=0.5,
    destroy_timeout_s=2.0,
    node_ttl_s=30.0,
    node_margin_s=0.5,
)


@dataclass(slots=True)
class Box:
    id: str
    request: CreateRequest
    born: float
    ends: float


@dataclass(slots=True, eq=False)
class SimulatedNode:
    """Implements `NodeApi`; `serving_node` puts it behind HTTP."""

    capacity: int = 8
    images: list[str] = field(default_factory=lambda: ["host"])
    start_s: float = 0.0
    boxes: dict[str, Box] = field(default_factory=dict[str, Box])
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    refuse: Exception | None = None  # of every start
    dead: bool = False  # answers nothing
    lose_replies: bool = False  # starts and ends are carried out, and their replies lost
    hold: asyncio.Event | None = None  # starts wait for it
    hold_ends: asyncio.Event | None = None  # so do ends
    ends: int = 0  # requests
    crashes: int = 0
    overbooked: int = 0  # starts beyond its capacity, which it refused
    created: int = 0
    destroyed: int = 0
    most: int = 0  # sandboxes at a time, ever
    keys: dict[str, CreateReply] = field(default_factory=dict[str, CreateReply])
    calls: list[str] = field(default_factory=list[str])

    def crash(self) -> None:
        """All sandboxes end; it answers nothing until `restart`."""
        self.dead = True
        self.crashes += 1
        self.boxes.clear()
        self.keys.clear()

    def restart(self) -> None:
        self.crash()
        self.dead, self.boot = False, secrets.token_hex(4)

    def living(self) -> dict[str, Box]:
        now = monotonic()
        for box_id in [box_id for box_id, box in self.boxes.items() if box.ends < now]:
            del self.boxes[box_id]
        return self.boxes

    def leases(self) -> list[str]:
        """Of which leases there are sandboxes; one that appears twice has two."""
        return sorted(box.request.lease.partition("/")[2] for box in self.living().values())

    def _check(self) -> None:
        if self.dead:
            raise Unreachable("it is dead")

    async def info(self) -> NodeReply:
        self._check()
        now = monotonic()
        return NodeReply(
            provider="simulated",
            boot=self.boot,
            capacity=self.capacity,
            memory_mib=64_000,
            free_memory_mib=32_000,
            images=self.images,
            sandboxes=[
                SandboxRow(
                    id=box.id,
                    image=box.request.spec.image,
                    run=box.request.spec.run,
                    lease=box.request.lease,
                    generation=box.request.generation,
                    age_s=now - box.born,
                    expires_in_s=box.ends - now,
                )
                for box in self.living().values()
            ],
            accepting=True,
        )

    async def create(self, request: CreateRequest, *, key: str) -> CreateReply:
        self._check()
        if self.refuse is not None:
            raise self.refuse
        boot = self.boot
        if self.hold is not None:
            await self.hold.wait()
        if self.start_s:
            await asyncio.sleep(self.start_s)
        self._check()
        if boot != self.boot:
            raise Unreachable("it has restarted")
        if key in self.keys:
            return self.keys[key]
        if len(self.living()) >= self.capacity:
            self.overbooked += 1
            raise ProviderUnavailable("the node is full", retryable=True)
        now = monotonic()
        reply = CreateReply(id=secrets.token_hex(8), capability="c", workdir="/testbed", enforced={})
        self.keys[key] = reply
        self.boxes[reply.id] = Box(reply.id, request, now, now + request.ttl_s)
        self.created += 1
        self.most = max(self.most, len(self.boxes))
        if self.lose_replies:
            raise Unreachable("its reply was lost")
        return reply

    async def destroy(self, sandbox_id: str) -> None:
        self._check()
        self.ends += 1
        if self.hold_ends is not None:
            await self.hold_ends.wait()
        if sandbox_id not in self.living():
            raise SandboxLost("it is gone")
        del self.boxes[sandbox_id]
        self.destroyed += 1
        if self.lose_replies:
            raise Unreachable("its reply was lost")

    async def renew(self, ids: Sequence[str], ttl_s: float) -> list[str]:
        self._check()
        now = monotonic()
        for box_id in ids:
            if box_id in self.living():
                self.boxes[box_id].ends = now + ttl_s
        return [box_id for box_id in ids if box_id not in self.boxes]


def node_app(node: SimulatedNode) -> Starlette:
    async def create(request: Request) -> Response:
        message = CreateRequest.model_validate_json(await request.body())
        return model_response(await node.create(message, key=request.headers[IDEMPOTENCY_HEADER]))

    async def destroy(request: Request) -> Response:
        await node.destroy(request.path_params["sandbox_id"])
        return JSONResponse({"ok": True})

    async def give_back(request: Request) -> Response:
        reply = node.keys.pop(request.headers[IDEMPOTENCY_HEADER], None)
        if reply is not None:
            node.boxes.pop(reply.id, None)
        return JSONResponse({"ok": True})

    async def renew(request: Request) -> Response:
        message = RenewRequest.model_validate_json(await request.body())
        return model_response(RenewReply(lost=await node.renew(message.ids, message.ttl_s)))

    async def info(request: Request) -> Response:
        return model_response(await node.info())

    async def compatible(request: Request) -> Response:
        body = await request.json()
        assert body["container_id"] in node.living()
        endpoint = request.path_params["endpoint"]
        return JSONResponse({"ok": True, "returncode": 0, "output": endpoint, "request": body})

    routes = [
        Route("/v1/sandboxes", create, methods=["POST"]),
        Route("/v1/sandboxes/{sandbox_id}", destroy, methods=["DELETE"]),
        Route("/v1/sandboxes", give_back, methods=["DELETE"]),
        Route("/v1/renewals", renew, methods=["POST"]),
        Route("/v1/node", info),
        Route("/container/{endpoint}", compatible, methods=["POST"]),
    ]
    return http_server.make_app(
        routes, error_response=lambda _, error: error_response(error), expected=EXPECTED
    )


@asynccontextmanager
async def listening(
    app: ASGIApp,
    listener: socket.socket | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[str]:
    """Serve an application while the block runs; gives its address.

    A `listener` of the caller keeps its port between two servers; connections wait for the next one.
    """
    with listener.dup() if listener else http_server.listen("127.0.0.1", 0) as own:
        async with http_server.serving(app, [own], on_stop=on_stop):
            yield http_server.address(own)


@asynccontextmanager
async def serving_pool(
    store: Path,
    nodes: Sequence[str],
    *,
    node_token: str = "n",
    timing: Timing = FAST,
    listener: socket.socket | None = None,
) -> AsyncIterator[tuple[str, Pool]]:
    """A pool server with the token "t" over nodes that are reached by HTTP; gives its address."""
    async with new_session() as session:

        def connect(url: str) -> NodeClient:
            return NodeClient(session, url, node_token)

        async with Pool(store, connect, nodes=nodes, timing=timing) as pool:
            app = make_pool_app(pool, session, token="t", node_token=node_token)
            async with listening(app, listener, pool.stop) as url:
                yield url, pool
