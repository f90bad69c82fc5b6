"""The sandboxes of a node: who may use them, how long they live, and that they end once.

Invariants:
- what counts against the capacity is in `_held`, from before its start until after it was destroyed;
- once `ending` is set nothing revives a sandbox: a renewal and the expiry are decided on the event loop, in
  one step each;
- a teardown is one task; it tries again until the provider has destroyed the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hone.sandbox.contract import (
    Limits,
    Mount,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxLost,
    SandboxSpec,
    Unauthorized,
)
from hone.sandbox.node.contents import Contents
from hone.sandbox.node.metrics import Metrics
from hone.sandbox.node.tunnels import NodeTunnel, open_tunnel
from hone.sandbox.remote.errors import to_body
from hone.sandbox.remote.wire import CreateRequest, SandboxRow, SpecBody
from hone.utils.http_server import is_same_token

START_S = 600.0  # the most that a start may take
CLOSE_S = 30.0  # one try to destroy a sandbox
_RETRY_S = 1.0  # between those tries
_REAP_S = 0.2
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A sandbox of this node, from its admission until it is destroyed."""

    id: str
    capability: str
    asked: CreateRequest
    idle_s: float  # every use prolongs its life to this; 0: only renewals do
    created: float = field(default_factory=time.monotonic)
    created_at: float = field(default_factory=time.time)  # wall clock, to be shown
    expires: float = float("inf")  # monotonic
    sandbox: Sandbox | None = None  # None until it is started
    tunnel: NodeTunnel | None = None
    resources: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    starting: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        if self.ending:
            return "ending"
        if self.sandbox:
            return "running"
        return "starting" if self.starting else "waiting"

    def row(self) -> SandboxRow:
        asked, now = self.asked, time.monotonic()
        return SandboxRow(
            id=self.id,
            image=asked.spec.image,
            run=asked.spec.run,
            lease=asked.lease,
            generation=asked.generation,
            age_s=now - self.created,
            expires_in_s=min(asked.ttl_s, max(0.0, self.expires - now)),
        )


class Sandboxes:
    def __init__(
        self,
        provider: Provider,
        contents: Contents,
        metrics: Metrics,
        *,
        capacity: int,
        token: str,
        sockets: Path,
    ) -> None:
        """`token` opens every sandbox, "" lets everyone in; `sockets` is a directory for those of tunnels."""
        self.capacity = capacity
        self.accepting = True
        self.trouble = asyncio.Event()  # a start failed in a way that asks for a look at the provider
        self._provider, self._contents, self._metrics, self._token = provider, contents, metrics, token
        self._sockets = sockets
        self._held: dict[str, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def states(self) -> Counter[str]:
        return Counter(held.state for held in self._held.values())

    def find(self, sandbox_id: str, token: str) -> Held:
        """Raises SandboxLost for one that is not here, Unauthorized for a token that does not open it."""
        held = self._held.get(sandbox_id)
        if held is None:
            raise SandboxLost("it has ended, or was never on this node")
        if self._token and not (is_same_token(token, self._token) or is_same_token(token, held.capability)):
            raise Unauthorized("the token is missing, or of another sandbox")
        return held

    def use(self, held: Held, for_s: float = 0.0) -> Sandbox:
        """The running sandbox; `for_s` is how long it is needed. Raises SandboxLost."""
        if held.ending or held.sandbox is None:
            raise SandboxLost("it is ending" if held.ending else "it was not started yet")
        if held.idle_s:
            held.expires = max(held.expires, time.monotonic() + for_s + held.idle_s)
        return held.sandbox

    # --- beginning

    async def create(self, asked: CreateRequest, *, idle_s: float = 0.0) -> Held:
        """Admit a sandbox, and start it unless its spec names contents. Cancelling ends it.

        Raises ProviderUnavailable.
        """
        self._admit(asked.spec)
        held = Held(
            id=secrets.token_hex(12), capability=secrets.token_urlsafe(32), asked=asked, idle_s=idle_s
        )
        self._held[held.id] = held
        needed = asked.spec.contents()
        self._contents.hold(needed)
        if needed:
            held.expires = time.monotonic() + asked.ttl_s
            return held
        try:
            await self.start(held)
        except asyncio.CancelledError:
            self._end(held)
            raise
        return held

    def _admit(self, spec: SpecBody) -> None:
        if not self.accepting:
            raise ProviderUnavailable("the node is shutting down", retryable=True)
        if len(self._held) >= self.capacity:
            raise ProviderUnavailable(
                f"the node is full: it takes {self.capacity} sandboxes at a time", retryable=True
            )
        if spec.image.startswith("rootfs:"):
            raise ProviderUnavailable(
                f"a node serves images, not directories of its own: {spec.image!r}", retryable=False
            )

    async def start(self, held: Held) -> list[str]:
        """Start it, once however often it is asked for; returns the contents that are missing, if any.

        Raises ProviderUnavailable, ValueError; the sandbox then ends.
        """
        if held.ending:
            raise SandboxLost("it is ending")
        if held.starting is None:
            if missing := self._contents.missing(held.asked.spec.contents()):
                return missing
            held.expires = float("inf")
            held.starting = asyncio.create_task(self._start(held))
        await asyncio.wait({held.starting})
        if held.starting.cancelled():
            raise ProviderUnavailable("the sandbox was ended while it started", retryable=True)
        held.starting.result()
        return []

    async def _start(self, held: Held) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(START_S):
                if held.asked.spec.tunnel:
                    opening = open_tunnel(self._sockets, held.id)
                    held.tunnel = await held.resources.enter_async_context(opening)
                held.sandbox = await self._provider.start(self._spec(held))
        except TimeoutError:
            self._failed(held, "timeout")
            raise ProviderUnavailable(f"the start took over {START_S:.0f} s", retryable=True) from None
        except Exception as error:
            self._failed(held, to_body(error)[1].code)
            raise
        held.expires = time.monotonic() + held.asked.ttl_s
        self._metrics.starts.inc()
        self._metrics.start_seconds.observe(time.monotonic() - began)

    def _failed(self, held: Held, code: str) -> None:
        self._metrics.start_failures.labels(code).inc()
        self.trouble.set()
        self._end(held)

    def _spec(self, held: Held) -> SandboxSpec:
        body = held.asked.spec
        return SandboxSpec(
            image=body.image,
            workdir=body.workdir,
            layer=self._contents.path(body.layer) if body.layer else None,
            env=body.env,
            mounts=tuple(
                Mount(source=self._contents.path(mount.content), target=mount.target) for mount in body.mounts
            ),
            limits=Limits(**body.limits.model_dump()),
            run=body.run,
            network=body.network,
            tunnel=held.tunnel.path if held.tunnel else None,
        )

    def renew(self, ids: Iterable[str], ttl_s: float) -> list[str]:
        """Let sandboxes live for `ttl_s` from now; returns those that are not here, or are ending."""
        now = time.monotonic()
        lost: list[str] = []
        for sandbox_id in ids:
            held = self._held.get(sandbox_id)
            if held is None or held.ending or held.expires <= now:
                lost.append(sandbox_id)
            elif held.state != "starting":
                held.expires = now + ttl_s
        return lost

    # --- ending

    async def reap(self) -> None:
        """End what nobody renewed; runs until cancelled."""
        while True:
            await asyncio.sleep(_REAP_S)
            now = time.monotonic()
            for held in self._held.values():
                if held.expires <= now and not held.ending:
                    self._metrics.expired.inc()
                    self._end(held)

    async def end(self, held: Held) -> None:
        """Return once it is destroyed. Raises ProviderUnavailable when that takes long; it goes on."""
        ending = self._end(held)
        await asyncio.wait({ending}, timeout=CLOSE_S)
        if not ending.done():
            raise ProviderUnavailable("the sandbox is still being destroyed", retryable=True)

    def _end(self, held: Held) -> asyncio.Task[None]:
        if held.ending is None:
            held.ending = asyncio.create_task(self._tear_down(held))
        return held.ending

    async def _tear_down(self, held: Held) -> None:
        if held.starting:
            held.starting.cancel()
            await asyncio.gather(held.starting, return_exceptions=True)
        if held.tunnel:
            await held.tunnel.close()
        while held.sandbox is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await held.sandbox.close()
                break
            except Exception as error:
                _log.warning("sandbox %s is not destroyed yet: %r", held.id, error)
                await asyncio.sleep(_RETRY_S)
        await held.resources.aclose()
        await self._contents.release(held.asked.spec.contents())
        del self._held[held.id]

    async def stop(self, within_s: float) -> None:
        """Admit nothing more and end everything, as far as that succeeds in time."""
        self.accepting = False
        endings = {self._end(held) for held in self._held.values()}
        if endings:
            _, late = await asyncio.wait(endings, timeout=within_s)
            for ending in late:
                ending.cancel()
            await asyncio.gather(*late, return_exceptions=True)
