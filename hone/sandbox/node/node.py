"""A node: one provider, its sandboxes, uploaded contents, idempotency journal and health probe."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox import owners, trees
from hone.sandbox.contract import Provider
from hone.sandbox.node.contents import Contents
from hone.sandbox.node.health import Probe
from hone.sandbox.node.journal import Journal
from hone.sandbox.node.metrics import Metrics
from hone.sandbox.node.sandboxes import Sandboxes

STOP_S = 30.0  # for sandboxes to end at shutdown; closing the provider ends the rest
_CONTENTS_MAX = 16 << 30  # bytes of uploaded layers and mounts
_REPLIES_MAX = 20_000
_REPLY_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    provider_name: str
    token: str = ""  # of the server; "" lets everyone in
    max_sandboxes: int = 64
    max_requests: int = 4096  # at a time


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
