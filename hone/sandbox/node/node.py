"""A node: one provider, its sandboxes, uploaded contents, idempotency journal and health probe.

The probe starts a sandbox, runs a command in it and closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox import owners, trees
from hone.sandbox.contract import Provider, SandboxSpec
from hone.sandbox.node.contents import Contents
from hone.sandbox.node.journal import Journal
from hone.sandbox.node.metrics import Metrics
from hone.sandbox.node.sandboxes import Sandboxes

STOP_S = 30.0  # for sandboxes to end at shutdown; closing the provider ends the rest
_CONTENTS_MAX = 16 << 30  # bytes of uploaded layers and mounts
_REPLIES_MAX = 20_000
_REPLY_BYTES_MAX = 256 << 20
PROBE_S = 15.0  # between probes of a healthy provider
PROBE_MAX_S = 60.0  # time limit of a probe
_FAILING_S = 3.0  # between probes of a failing provider
_SETTLE_S = 1.0  # after a failed start, so that many failures cause one probe


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    provider_name: str
    token: str = ""  # of the server; "" lets everyone in
    max_sandboxes: int = 64
    max_requests: int = 4096  # at a time


class Probe:
    """Probes in the background and keeps the newest result."""

    def __init__(self, provider: Provider, start_failed: asyncio.Event) -> None:
        self.error = "not probed yet"  # of the newest probe; "" when it succeeded
        self.images: list[str] = []  # available without a pull, at the newest successful probe
        self._provider, self._start_failed = provider, start_failed

    async def watch(self) -> None:
        """Probe until cancelled; more often after failures."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAILING_S if self.error else PROBE_S):
                    await self._start_failed.wait()
                await asyncio.sleep(_SETTLE_S)
            self._start_failed.clear()
            await self.probe()

    async def probe(self) -> None:
        """Probe once and keep the result."""
        try:
            async with asyncio.timeout(PROBE_MAX_S):
                self.error = await self._try()
        except TimeoutError:
            self.error = f"a probe took over {PROBE_MAX_S:.0f} s"
        except Exception as error:  # any exception means that the provider does not work
            self.error = f"a probe failed: {error}"

    async def _try(self) -> str:
        health = await self._provider.health()
        if not health.ok:
            return "; ".join(f"{c.name}: {c.detail}" for c in health.checks if c.required and not c.ok)
        async with await self._provider.start(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["true"], timeout_s=PROBE_MAX_S)
        self.images = await self._provider.images()
        return "" if result.exit_code == 0 else f"a probe's command ended with {result.exit_code}"


class Node:
    def __init__(self, provider: Provider, options: NodeOptions, directory: Path) -> None:
        """`provider` is open; `directory` is empty and exclusive to this node."""
        contents, sockets = directory / "contents", directory / "tunnels"
        contents.mkdir()
        sockets.mkdir()
        self.options = options
        self.boot = secrets.token_hex(8)
        self.metrics = Metrics()
        self.contents = Contents(contents, bytes_max=_CONTENTS_MAX)
        self.journal = Journal(replies_max=_REPLIES_MAX, bytes_max=_REPLY_BYTES_MAX)
        self.sandboxes = Sandboxes(
            provider,
            self.contents,
            self.metrics,
            capacity=options.max_sandboxes,
            token=options.token,
            sockets=sockets,
        )
        self.probe = Probe(provider, self.sandboxes.start_failed)
        self.directory = directory

    @contextlib.asynccontextmanager
    async def staging(self) -> AsyncIterator[Path]:
        """Yield a temporary directory for files between a client and a sandbox."""
        path = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self.directory, prefix="staging-"))
        try:
            yield path
        finally:
            await asyncio.to_thread(trees.remove, path)

    async def stop(self) -> None:
        """Refuse new sandboxes and end all others, with the commands in them."""
        await self.sandboxes.stop(STOP_S)
        await self.journal.close()


@contextlib.asynccontextmanager
async def open_node(provider: Provider, options: NodeOptions, directory: Path) -> AsyncGenerator[Node]:
    """Open the provider and a node over it, which gets a new directory in `directory`.

    Removes the directories of dead nodes first. Raises ProviderUnavailable.
    """
    async with provider:
        own = await asyncio.to_thread(_open_directory, directory)
        try:
            node = Node(provider, options, own)
            async with _background(node):
                await node.probe.probe()
                yield node
        finally:
            await asyncio.to_thread(trees.remove, own)


@contextlib.asynccontextmanager
async def _background(node: Node) -> AsyncIterator[None]:
    """Expire and probe in the background; a failure of either ends the node."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(node.sandboxes.reap()), group.create_task(node.probe.watch())]
        try:
            yield
        finally:
            await node.stop()
            for task in tasks:
                task.cancel()


def _open_directory(directory: Path) -> Path:
    owners.open_state_dir(directory)
    for entry in list(directory.iterdir()):
        if owners.is_dead(entry.name):
            with contextlib.suppress(FileNotFoundError):  # another node may be removing it too
                trees.remove(entry)
    own = directory / owners.new_name()
    own.mkdir(mode=0o700)
    return own
