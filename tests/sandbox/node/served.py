"""A node server on a free port of this process, and a thin provider that is a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from hone.sandbox import Health, Provider, SandboxSpec
from hone.sandbox.client.api import NodeClient
from hone.sandbox.client.provider import pack_spec
from hone.sandbox.client.sandbox import RemoteSandbox
from hone.sandbox.contract import WriteContext
from hone.sandbox.node.node import NodeOptions, open_node
from hone.sandbox.node.server import make_node_app
from hone.sandbox.remote.server import ClientTls
from hone.sandbox.remote.wire import CreateRequest
from hone.utils.http_client import new_session
from hone.utils.http_server import address, listen, serving

TOKEN = "the-token-of-the-server"
TTL_S = 30.0


@contextlib.asynccontextmanager
async def served(provider: Provider, state_dir: Path, **options: int) -> AsyncIterator[str]:
    """The address of a node over a provider, until the block ends."""
    node_options = NodeOptions(provider_name="test", token=TOKEN, **options)
    listener = listen("127.0.0.1", 0)
    async with (
        open_node(provider, node_options, state_dir) as node,
        serving(make_node_app(node), [listener], on_stop=node.stop),
    ):
        yield address(listener)


class NodeProvider:
    """The sandboxes of one node, renewed in the background."""

    def __init__(self, url: str, tls: ClientTls | None = None) -> None:
        self._url = url
        self._tls = tls or ClientTls()
        self._provider_health = Health(checks=())

    async def start_default(self) -> RemoteSandbox:
        return await self.start(SandboxSpec())

    async def start(self, spec: SandboxSpec) -> RemoteSandbox:
        body, contents = await pack_spec(spec)
        request = CreateRequest(spec=body, ttl_s=TTL_S)
        made = await self.client.create(request, key=secrets.token_hex(8))
        sandbox = RemoteSandbox(
            self.session,
            node_url=self._url,
            sandbox_id=made.id,
            capability=made.capability,
            spec=dataclasses.replace(spec, workdir=made.workdir or spec.workdir),
            enforced=made.enforced,
            on_close=lambda: self._destroy(made.id),
        )
        self._open.add(made.id)
        try:
            await sandbox.start(contents)
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def _destroy(self, sandbox_id: str) -> None:
        self._open.discard(sandbox_id)
        await self.client.destroy(sandbox_id)

    async def health(self) -> Health:
        assert await self.client.healthy()
        return self._provider_health

    async def images(self) -> list[str]:
        return ["host"]

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        return None

    async def reconcile(self) -> int:
        return 0

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(TTL_S / 10)
            await self.client.renew(sorted(self._open), TTL_S)

    async def __aenter__(self) -> NodeProvider:
        self._open: set[str] = set()
        self.session = new_session(context=self._tls.context())
        self.client = NodeClient(self.session, self._url, TOKEN)
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        await self.session.close()
