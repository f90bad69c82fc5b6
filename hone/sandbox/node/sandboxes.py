"""The sandboxes of a node: access, time to live, and exactly one teardown each.

Invariants:
- a sandbox counts against the capacity (is in `_entries`) from before its start until it is destroyed;
- once `ending` is set, nothing revives a sandbox: renewal and expiry are single steps of the event loop;
- a teardown is one task, which retries until the provider has destroyed the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hone.sandbox.contract import (
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
from hone.sandbox.node.tunnels import NodeTunnel
from hone.sandbox.remote.errors import to_body
from hone.sandbox.remote.wire import CreateRequest, SandboxRow, SpecBody
from hone.utils.clock import monotonic
from hone.utils.concurrency import cancel_all, finish_within
from hone.utils.http_server import is_same_token

START_S = 600.0  # time limit of a start
CLOSE_S = 30.0  # time limit of one attempt to destroy a sandbox
_RETRY_S = 1.0  # between attempts
_REAP_S = 0.2
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class SandboxEntry:
    """A sandbox of this node, from admission to destruction."""

    id: str
    capability: str
    request: CreateRequest
    idle_s: float  # every use extends the time to live to this; 0: only renewals do
    created: float = field(default_factory=monotonic)
    created_at: float = field(default_factory=time.time)  # wall clock, for display
    expires: float = float("inf")  # monotonic
    sandbox: Sandbox | None = None  # None until it is started
    tunnel: NodeTunnel | None = None
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
        request, now = self.request, monotonic()
        return SandboxRow(
            id=self.id,
            image=request.spec.image,
            run=request.spec.run,
            lease=request.lease,
            generation=request.generation,
            age_s=now - self.created,
            expires_in_s=min(request.ttl_s, max(0.0, self.expires - now)),
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
        """`token` grants access to every sandbox, "" to everyone; `sockets` is a directory for tunnels."""
        self.capacity = capacity
        self.accepting = True
        self.start_failed = asyncio.Event()  # tells the health probe to run
        self._provider, self._contents, self._metrics, self._token = provider, contents, metrics, token
        self._sockets = sockets
        self._entries: dict[str, SandboxEntry] = {}

    def __iter__(self) -> Iterator[SandboxEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def states(self) -> Counter[str]:
        return Counter(entry.state for entry in self._entries.values())

    def find(self, sandbox_id: str, token: str) -> SandboxEntry:
        """Return a sandbox. Raises SandboxLost when it is gone, Unauthorized for a wrong token."""
        entry = self._entries.get(sandbox_id)
        if entry is None:
            raise SandboxLost("the sandbox has ended, or was never on this node")
        if self._token and not (is_same_token(token, self._token) or is_same_token(token, entry.capability)):
            raise Unauthorized("the token is missing, or of another sandbox")
        return entry

    def require_known(self, token: str) -> None:
        """Raise Unauthorized unless a token is the server's, or a capability of some sandbox."""
        known = [self._token, *(entry.capability for entry in self._entries.values())]
        if self._token and not any(is_same_token(token, other) for other in known):
            raise Unauthorized("the token is missing or wrong")

    def use(self, entry: SandboxEntry, for_s: float = 0.0) -> Sandbox:
        """Return the running sandbox and extend its idle time by `for_s`. Raises SandboxLost."""
        if entry.ending or entry.sandbox is None:
            raise SandboxLost("the sandbox is ending" if entry.ending else "the sandbox is not started yet")
        if entry.idle_s:
            entry.expires = max(entry.expires, monotonic() + for_s + entry.idle_s)
        return entry.sandbox

    # --- beginning

    async def create(self, request: CreateRequest, *, idle_s: float = 0.0) -> SandboxEntry:
        """Admit a sandbox, and start it unless its spec names contents. Cancellation ends it.

        Raises ProviderUnavailable.
        """
        self._admit(request.spec)
        entry = SandboxEntry(
            id=secrets.token_hex(12), capability=secrets.token_urlsafe(32), request=request, idle_s=idle_s
        )
        self._entries[entry.id] = entry
        needed = request.spec.contents()
        self._contents.retain(needed)
        if needed:
            entry.expires = monotonic() + request.ttl_s
            return entry
        try:
            await self.start(entry)
        except asyncio.CancelledError:
            self._end(entry)
            raise
        return entry

    def _admit(self, spec: SpecBody) -> None:
        if not self.accepting:
            raise ProviderUnavailable("the node is shutting down", retryable=True)
        if len(self._entries) >= self.capacity:
            raise ProviderUnavailable(
                f"the node is full: its limit is {self.capacity} sandboxes", retryable=True
            )
        if spec.image.startswith("rootfs:"):
            raise ProviderUnavailable(
                f"a node starts images, not directories of its machine: {spec.image!r}", retryable=False
            )

    async def start(self, entry: SandboxEntry) -> list[str]:
        """Start a sandbox once, however often this is called; return the digests of missing contents, if any.

        Raises ProviderUnavailable, ValueError; the sandbox then ends.
        """
        if entry.ending:
            raise SandboxLost("the sandbox is ending")
        if entry.starting is None:
            if missing := self._contents.missing(entry.request.spec.contents()):
                return missing
            entry.expires = float("inf")
            entry.starting = asyncio.create_task(self._start(entry))
        await asyncio.wait({entry.starting})
        if entry.starting.cancelled():
            raise ProviderUnavailable("the sandbox was ended while it started", retryable=True)
        entry.starting.result()
        return []

    async def _start(self, entry: SandboxEntry) -> None:
        began = monotonic()
        try:
            async with asyncio.timeout(START_S):
                if entry.request.spec.tunnel:
                    entry.tunnel = NodeTunnel(self._sockets / entry.id)
                    await entry.tunnel.open()
                entry.sandbox = await self._provider.start(self._spec(entry))
        except TimeoutError:
            self._failed(entry, "timeout")
            raise ProviderUnavailable(f"the start took over {START_S:.0f} s", retryable=True) from None
        except Exception as error:
            self._failed(entry, to_body(error)[1].code)
            raise
        entry.expires = monotonic() + entry.request.ttl_s
        self._metrics.starts.inc()
        self._metrics.start_seconds.observe(monotonic() - began)

    def _failed(self, entry: SandboxEntry, code: str) -> None:
        self._metrics.start_failures.labels(code).inc()
        self.start_failed.set()
        self._end(entry)

    def _spec(self, entry: SandboxEntry) -> SandboxSpec:
        body = entry.request.spec
        local = {
            "layer": self._contents.path(body.layer) if body.layer else None,
            "mounts": tuple(
                Mount(source=self._contents.path(mount.content), target=mount.target) for mount in body.mounts
            ),
            "tunnel": entry.tunnel.path if entry.tunnel else None,
        }
        return SandboxSpec(**{**dict(body), **local})

    def renew(self, ids: Iterable[str], ttl_s: float) -> list[str]:
        """Let sandboxes live for `ttl_s` from now; return the ids that are gone or ending."""
        now = monotonic()
        lost: list[str] = []
        for sandbox_id in ids:
            entry = self._entries.get(sandbox_id)
            if entry is None or entry.ending or entry.expires <= now:
                lost.append(sandbox_id)
            elif entry.state != "starting":
                entry.expires = now + ttl_s
        return lost

    # --- ending

    async def reap(self) -> None:
        """End expired sandboxes until cancelled."""
        while True:
            await asyncio.sleep(_REAP_S)
            now = monotonic()
            for entry in self._entries.values():
                if entry.expires <= now and not entry.ending:
                    self._metrics.expired.inc()
                    self._end(entry)

    async def end(self, entry: SandboxEntry) -> None:
        """Return once a sandbox is destroyed.

        Raises ProviderUnavailable after CLOSE_S; the teardown continues.
        """
        ending = self._end(entry)
        await asyncio.wait({ending}, timeout=CLOSE_S)
        if not ending.done():
            raise ProviderUnavailable("the sandbox is still being destroyed", retryable=True)

    def _end(self, entry: SandboxEntry) -> asyncio.Task[None]:
        if entry.ending is None:
            entry.ending = asyncio.create_task(self._tear_down(entry))
        return entry.ending

    async def _tear_down(self, entry: SandboxEntry) -> None:
        if entry.starting:
            await cancel_all([entry.starting])
        if entry.tunnel:
            await entry.tunnel.close()
        while entry.sandbox is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await entry.sandbox.close()
                break
            except Exception as error:
                _log.warning("sandbox %s is not destroyed yet: %r", entry.id, error)
                await asyncio.sleep(_RETRY_S)
        await self._contents.release(entry.request.spec.contents())
        del self._entries[entry.id]

    async def stop(self, within_s: float) -> None:
        """Refuse new sandboxes and end all others; stop waiting after `within_s`."""
        self.accepting = False
        await finish_within([self._end(entry) for entry in self._entries.values()], within_s)
