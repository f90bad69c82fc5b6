"""The provider `pool` against a pool server and real node servers, whose own sandboxes do nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from hone.sandbox import LeaseLost, ProviderUnavailable, QueueTimeout, SandboxLost, SandboxSpec
from hone.sandbox.client.api import PoolClient
from hone.sandbox.client.provider import PoolProvider
from hone.sandbox.network import connect_unix
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from hone.sandbox.settings import SandboxSettings
from hone.utils import http_server
from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import TOKEN, served
from tests.sandbox.pool.simulated import serving_pool
from tests.virtual_time import run as run_virtual
from tests.waiting import wait_until_async

PATIENT = Timing(probe_s=0.2, probe_timeout_s=30.0, destroy_timeout_s=60.0)  # all share one event loop


def settings_for(url: str, tmp_path: Path, **values: object) -> SandboxSettings:
    token_file = tmp_path / "token"
    token_file.write_text("t")
    token_file.chmod(0o600)
    return SandboxSettings.model_validate(
        {"provider": "pool", "pool_url": url, "pool_token_file": token_file, "lease_ttl_s": 30.0, **values}
    )


@asynccontextmanager
async def floor(tmp_path: Path, *, room: int = 64) -> AsyncIterator[tuple[IdleProvider, str, Pool]]:
    """A node over a provider that does nothing, and a pool over the node."""
    idle = IdleProvider()
    async with (
        served(idle, tmp_path / "node", max_sandboxes=room, max_requests=20_000) as node_url,
        serving_pool(tmp_path / "s", [node_url], node_token=TOKEN, timing=PATIENT) as (url, pool),
    ):
        await wait_until_async(lambda: not pool.unhealthy())
        yield idle, url, pool


def test_sandbox_is_leased_used_directly_and_returned(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path) as (idle, url, pool),
            PoolProvider(settings_for(url, tmp_path)) as provider,
        ):
            async with await provider.start(SandboxSpec(run="r")) as sandbox:
                assert (await sandbox.exec(["say", "hello"])).stdout == b"say hello"
                [row] = pool.status().leases
                assert (row.state, row.run) == ("active", "r")
            assert not idle.living
            assert pool.status().leases == []
            with pytest.raises(SandboxLost):
                await sandbox.exec("true")

    run_virtual(run())


@pytest.mark.full
def test_a_thousand_sandboxes_live_at_once_in_one_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path, room=1000) as (idle, url, pool):
            async with PoolProvider(settings_for(url, tmp_path, lease_ttl_s=60.0)) as provider:
                sandboxes = await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(1000)))
                assert len(idle.living) == 1000
                results = await asyncio.gather(*(sandbox.exec("x") for sandbox in sandboxes))
                assert all(result.exit_code == 0 for result in results)
            assert not idle.living
            totals = pool.status().totals
            assert (totals["allocated"], totals["closed"], totals["lost"]) == (1000, 1000, 0)

    run_virtual(run())


def test_burst_beyond_the_capacity_is_queued_and_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path, room=4) as (idle, url, _),
            PoolProvider(settings_for(url, tmp_path)) as provider,
        ):

            async def episode() -> None:
                async with await provider.start(SandboxSpec()) as sandbox:
                    assert len(idle.living) <= 4
                    await sandbox.exec("x")

            await asyncio.gather(*(episode() for _ in range(100)))
            assert idle.started >= 100

    run_virtual(run())


def test_client_without_heartbeats_loses_its_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> list[str]:
        return await asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with (
            floor(tmp_path) as (idle, url, pool),
            # above the longest stall that the clock of leases counts, and the time between two beats
            PoolProvider(settings_for(url, tmp_path, lease_ttl_s=3.0)) as provider,
        ):
            sandbox = await provider.start(SandboxSpec())
            lease = pool.begin_call(pool.status().leases[0].lease_id)
            pool.finish_call(lease)
            renewed = lease.expires
            await wait_until_async(lambda: lease.expires > renewed + 4)
            assert (await sandbox.exec("x")).exit_code == 0
            monkeypatch.setattr(PoolClient, "heartbeat", hang)
            await wait_until_async(lambda: not idle.living)
            assert pool.status().totals["expired"] == 1

    run_virtual(run())


def test_lost_lease_fails_running_and_later_commands(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path) as (_, url, pool),
            PoolProvider(settings_for(url, tmp_path, lease_ttl_s=3.0)) as provider,
        ):
            sandbox = await provider.start(SandboxSpec())
            running = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
            await asyncio.sleep(0)
            await pool.close(pool.status().leases[0].lease_id)  # an operator does
            with pytest.raises(SandboxLost):
                await running

            async def is_lease_lost() -> bool:
                with pytest.raises(SandboxLost) as raised:
                    await sandbox.exec("x")
                return isinstance(raised.value, LeaseLost)

            await wait_until_async(is_lease_lost)  # the next heartbeat tells the client
            await sandbox.close()

    run_virtual(run())


def test_cancelled_start_returns_its_lease_at_any_moment(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path, room=2) as (idle, url, pool),
            PoolProvider(settings_for(url, tmp_path)) as provider,
        ):
            for turns in range(0, 60, 3):
                start = asyncio.create_task(provider.start(SandboxSpec()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                start.cancel()
                await asyncio.wait([start])
                if not start.cancelled():
                    await start.result().close()
            await wait_until_async(lambda: not idle.living and pool.status().leases == [])
            idle.may_start.clear()
            start = asyncio.create_task(provider.start(SandboxSpec()))
            await wait_until_async(lambda: len(pool.status().leases) == 1)
            start.cancel()
            await wait_until_async(lambda: pool.status().leases == [])
            idle.may_start.set()
            await wait_until_async(lambda: not idle.living and not any(node.slots for node in pool.fleet))

    run_virtual(run())


def test_a_full_pool_is_a_queue_timeout(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path, room=1) as (_, url, pool),
            PoolProvider(settings_for(url, tmp_path, queue_timeout_s=0.3)) as provider,
        ):
            await provider.start(SandboxSpec())
            with pytest.raises(QueueTimeout):
                await provider.start(SandboxSpec())
            assert len(pool.status().leases) == 1

    run_virtual(run())


def test_wrong_token_or_missing_pool_fails_on_entry(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as (_, url, _):
            settings = settings_for(url, tmp_path)
            (tmp_path / "token").write_text("wrong")
            with pytest.raises(ProviderUnavailable, match="token"):
                await PoolProvider(settings).__aenter__()
        with pytest.raises(ProviderUnavailable, match="pool_url"):
            await PoolProvider(settings_for("", tmp_path)).__aenter__()
        health = await PoolProvider(settings_for("http://127.0.0.1:9", tmp_path)).health()
        assert not health.ok
        assert "hone pool" in health.checks[0].fix

    run_virtual(run())


def test_health_lists_the_nodes(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path, room=7) as (_, url, _):
            health = await PoolProvider(settings_for(url, tmp_path)).health()
            assert health.ok
            assert "1 of 1 active, room for 7" in health.checks[1].detail

    run_virtual(run())


def test_a_snapshot_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            floor(tmp_path) as (idle, url, _),
            PoolProvider(settings_for(url, tmp_path)) as provider,
        ):
            with pytest.raises(ProviderUnavailable, match="snapshot"):
                await provider.start(SandboxSpec(snapshot=tmp_path / "snapshot"))
            assert not idle.living

    run_virtual(run())


def test_the_connections_of_a_tunnel_end_with_the_lease(tmp_path: Path) -> None:
    ended: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        ended.append(await reader.read())
        writer.close()

    async def run() -> None:
        path = tmp_path / "service"
        async with (
            asyncio.timeout(60),
            await asyncio.start_unix_server(answer, path),
            floor(tmp_path) as (idle, url, pool),
            PoolProvider(settings_for(url, tmp_path)) as provider,
        ):
            sandbox = await provider.start(SandboxSpec(tunnel=path))
            [inside] = idle.living
            reader, writer = await connect_unix(inside.spec.tunnel or Path())
            assert await reader.readexactly(5) == b"hello"
            await pool.close(pool.status().leases[0].lease_id)
            assert await reader.read() == b""
            await wait_until_async(lambda: ended == [b""])
            with pytest.raises(SandboxLost):
                await sandbox.exec("true")
            writer.close()

            sandbox = await provider.start(SandboxSpec(tunnel=path))
            [inside] = idle.living
            reader, writer = await connect_unix(inside.spec.tunnel or Path())
            assert await reader.readexactly(5) == b"hello"
            sandbox.lose(LeaseLost("expired"))  # the pool says so, though the node has the sandbox
            await wait_until_async(lambda: ended == [b"", b""])
            writer.close()

    run_virtual(run())


_DYING = """
import asyncio, os, signal, sys
from hone.sandbox import SandboxSpec
from hone.sandbox.client.api import PoolClient
from hone.sandbox.client.provider import PoolProvider
from hone.sandbox.settings import SandboxSettings

async def main():
    provider = PoolProvider(SandboxSettings.model_validate_json(sys.argv[1]))
    await provider.__aenter__()
    await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(3)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_next_client_closes_leases_of_a_killed_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as (idle, url, pool):
            settings = settings_for(url, tmp_path, lease_ttl_s=600.0)
            command = [sys.executable, "-c", _DYING, settings.model_dump_json()]
            died = await asyncio.to_thread(subprocess.run, command, cwd=Path.cwd(), timeout=60)
            assert died.returncode == -9
            assert len(idle.living) == 3
            async with PoolProvider(settings) as provider:
                assert pool.status().leases == []
                assert not idle.living
                mine = await provider.start(SandboxSpec())
                assert await PoolProvider(settings).reconcile() == 0
                assert (await mine.exec("x")).exit_code == 0

    asyncio.run(run())  # the other process follows the real clock


def test_a_client_survives_a_restart_of_the_pool(tmp_path: Path) -> None:
    async def run() -> None:
        idle, listener = IdleProvider(), http_server.listen("127.0.0.1", 0)
        async with served(idle, tmp_path / "node", max_sandboxes=1) as node_url:
            serve = partial(serving_pool, tmp_path / "s", [node_url], node_token=TOKEN, listener=listener)
            async with serve() as (url, pool):
                await wait_until_async(lambda: not pool.unhealthy())
                provider = PoolProvider(settings_for(url, tmp_path))
                await provider.__aenter__()
                sandbox = await provider.start(SandboxSpec())
                waits = asyncio.create_task(provider.start(SandboxSpec()))
                await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            # the pool has ended; it comes again at the same address
            assert (await sandbox.exec("x")).exit_code == 0  # commands do not pass through the pool
            async with serve():
                await sandbox.close()
                async with await waits as second:
                    assert (await second.exec("x")).exit_code == 0
                await provider.__aexit__()
            assert not idle.living
        listener.close()

    run_virtual(run())
