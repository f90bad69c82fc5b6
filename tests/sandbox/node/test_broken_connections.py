"""Connections that break in the middle: what can be requested again is, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hone.sandbox import SandboxLost
from hone.sandbox.client.api import Unreachable
from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import NodeProvider, served
from tests.virtual_time import run as run_virtual
from tests.waiting import wait_until_async


class Cutter:
    """A TCP relay that cuts the next `cuts` connections once the server's reply arrives."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self.cuts = self.cut = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)

        async def upwards() -> None:
            while data := await reader.read(1 << 16):
                up_writer.write(data)

        async def downwards() -> None:
            while data := await up_reader.read(1 << 16):
                if self.cuts:
                    self.cuts -= 1
                    self.cut += 1
                    return
                writer.write(data)

        tasks = {asyncio.create_task(upwards()), asyncio.create_task(downwards())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in (writer, up_writer):
                end.transport.abort()


@contextlib.asynccontextmanager
async def cut(folder: Path) -> AsyncIterator[tuple[IdleProvider, NodeProvider, Cutter]]:
    provider = IdleProvider()
    async with served(provider, folder / "state") as url:
        cutter = Cutter(url)
        relay = await asyncio.start_server(cutter.relay, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        async with relay, NodeProvider(f"http://127.0.0.1:{port}") as client:
            provider.forget()
            yield provider, client, cutter


def test_command_with_a_lost_reply_is_retried_and_runs_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut(tmp_path) as (provider, client, cutter):
            sandbox = await client.start_default()
            cutter.cuts = 3
            assert (await sandbox.exec(["hello"])).text == "hello"
            assert (cutter.cut, provider.commands) == (3, [["hello"]])

    run_virtual(run())


def test_start_with_a_lost_reply_is_retried_and_makes_one_sandbox(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut(tmp_path) as (provider, client, cutter):
            cutter.cuts = 2
            await client.start_default()
            assert (cutter.cut, provider.started, len(provider.living)) == (2, 1, 1)

    run_virtual(run())


def test_file_transfers_and_close_are_retried(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut(tmp_path) as (provider, client, cutter):
            sandbox = await client.start_default()
            cutter.cuts = 1
            await sandbox.write("a", b"data")
            cutter.cuts = 1
            assert await sandbox.read("a") == b"data"
            cutter.cuts = 1
            await sandbox.close()
            assert cutter.cut == 3
            assert not provider.living

    run_virtual(run())


def test_streamed_command_fails_with_its_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut(tmp_path) as (provider, client, cutter):
            sandbox = await client.start_default()
            cutter.cuts = 1
            with pytest.raises(SandboxLost, match="cannot be reached"):
                await sandbox.exec(["sleep"], timeout_s=60, on_output=lambda *_: None)
            assert provider.commands == [["sleep"]]
            await wait_until_async(lambda: provider.cancelled == [["sleep"]])

    run_virtual(run())


def test_retries_are_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        async with cut(tmp_path) as (provider, client, cutter):
            sandbox = await client.start_default()
            cutter.cuts = 1000
            with pytest.raises(SandboxLost, match="cannot be reached"):
                await sandbox.exec(["hello"])
            with pytest.raises(Unreachable):
                await client.client.info()
            assert provider.commands == [["hello"]]
            assert cutter.cut < 30

    run_virtual(run())
