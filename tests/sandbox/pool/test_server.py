"""The pool server over HTTP: its own endpoints, the compatible ones, tokens and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from tests.sandbox.pool.simulated import FAST, SimulatedNode, listening, node_app, serving_pool
from tests.waiting import wait_until_async

TOKEN = {"Authorization": "Bearer t"}


@asynccontextmanager
async def served(
    tmp_path: Path, node: SimulatedNode, timing: Timing = FAST
) -> AsyncIterator[tuple[aiohttp.ClientSession, Pool]]:
    """A session with a pool server over one node."""
    async with (
        listening(node_app(node)) as node_url,
        serving_pool(tmp_path / "s", [node_url], timing=timing) as (url, pool),
    ):
        await wait_until_async(lambda: not pool.unhealthy())
        async with aiohttp.ClientSession(url, headers=TOKEN) as session:
            yield session, pool


def lease_request(lease_id: str, **fields: object) -> dict[str, object]:
    return {"lease_id": lease_id, "owner": "o", "spec": {}, **fields}


def test_lease_is_granted_renewed_and_closed_over_http(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode()
        async with served(tmp_path, node) as (session, _):
            async with session.post("/v1/leases", json=lease_request("a")) as response:
                lease = await response.json()
            assert lease["ok"]
            assert lease["capability"] == "c"
            beats = {"leases": [{"lease_id": "a", "generation": lease["generation"]}]}
            async with session.post("/v1/heartbeats", json=beats) as response:
                assert await response.json() == {"ok": True, "lost": []}
            async with session.get("/v1/leases/a") as response:
                assert (await response.json())["state"] == "active"
            async with session.get("/v1/status") as response:
                assert len((await response.json())["leases"]) == 1
            for _ in range(2):
                async with session.delete("/v1/leases/a", params={"generation": 1}) as response:
                    assert response.status == 200
            assert node.leases() == []
            async with session.post("/v1/leases", json=lease_request("a")) as response:
                assert response.status == 410
                assert (await response.json())["code"] == "lease_lost"
            async with session.get("/metrics") as response:
                assert 'hone_pool_events_total{event="closed"} 1.0' in await response.text()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/leases"),
        ("POST", "/v1/heartbeats"),
        ("GET", "/v1/leases/a"),
        ("DELETE", "/v1/leases/a"),
        ("DELETE", "/v1/owners/o"),
        ("GET", "/v1/status"),
        ("POST", "/v1/nodes"),
        ("DELETE", "/v1/nodes?url=x"),
        ("GET", "/metrics"),
        ("POST", "/allocate"),
        ("POST", "/heartbeat"),
        ("POST", "/close"),
        ("POST", "/exec"),
        ("POST", "/diff"),
        ("POST", "/evaluate"),
        ("GET", "/status"),
    ],
)
def test_only_healthz_answers_without_the_token(tmp_path: Path, method: str, path: str) -> None:
    async def run() -> None:
        async with serving_pool(tmp_path / "s", []) as (url, _), aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                async with session.request(method, url + path, headers=headers, json={}) as response:
                    assert response.status == 401
                    assert (await response.json())["code"] == "unauthorized"
            async with session.get(url + "/healthz") as response:
                assert response.status == 503  # it has no node
                assert not (await response.json())["ok"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"lease_id": "a", "owner": "o", "spec": {}, "tttl": 3}', "tttl"),
        (b'{"lease_id": "../a", "owner": "o", "spec": {}}', "lease_id"),
        (b'{"lease_id": "a", "owner": "o", "spec": {}, "ttl_s": 0}', "ttl_s"),
        (b'{"lease_id": "a", "owner": "o", "spec": {"limits": {"memory_mib": -1}}}', "memory_mib"),
    ],
)
def test_malformed_request_gets_the_reason(tmp_path: Path, body: bytes, word: str) -> None:
    async def run() -> None:
        async with (
            serving_pool(tmp_path / "s", []) as (url, pool),
            aiohttp.ClientSession(url, headers=TOKEN) as session,
            session.post("/v1/leases", data=body) as response,
        ):
            assert response.status == 400
            said = await response.json()
            assert (said["ok"], said["code"], said["retryable"]) == (False, "bad_request", False)
            assert word in said["error"]
            assert pool.status().leases == []

    asyncio.run(run())


def test_invalid_lease_id_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving_pool(tmp_path / "s", []) as (url, _),
            aiohttp.ClientSession(url, headers=TOKEN) as session,
        ):
            for path in ("/v1/leases/" + "a" * 200, "/v1/leases/%00", "/v1/leases/a?generation=x"):
                async with session.delete(path) as response:
                    assert response.status == 400

    asyncio.run(run())


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving_pool(tmp_path / "s", []) as (url, _),
            aiohttp.ClientSession(url, headers=TOKEN) as session,
            session.post("/v1/heartbeats", data=b" " * (9 << 20)) as response,
        ):
            assert response.status == 413

    asyncio.run(run())


def test_disconnected_client_leaves_the_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, SimulatedNode(capacity=1)) as (session, pool):
            (await session.post("/v1/leases", json=lease_request("a"))).release()
            waits = asyncio.create_task(session.post("/v1/leases", json=lease_request("b")))
            await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            waits.cancel()
            await wait_until_async(lambda: pool.status().queued == {})

    asyncio.run(run())


def test_stopping_server_fails_queued_requests(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, SimulatedNode(capacity=1)) as (session, pool):
            (await session.post("/v1/leases", json=lease_request("a"))).release()
            waits = asyncio.create_task(session.post("/v1/leases", json=lease_request("b")))
            await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            await pool.stop()
            body = await (await waits).json()
            assert (body["code"], body["retryable"]) == ("provider_unavailable", True)

    asyncio.run(run())


# --- the endpoints of the SWE env pool server


def test_swe_env_pool_client_gets_its_documented_fields(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode(capacity=3)
        async with served(tmp_path, node) as (session, _):

            async def post(path: str, **body: object) -> dict[str, object]:
                async with session.post(path, json=body) as response:
                    assert response.status == 200, await response.text()
                    return await response.json()

            lease = await post("/allocate", image="swebench/x:latest", instance_id="x")
            assert set(lease) == {"ok", "lease_id", "container_id", "node_url"}
            lease_id = str(lease["lease_id"])
            assert re.fullmatch(r"swe-lease-[0-9a-f]{16}", lease_id)
            box = node.boxes[str(lease["container_id"])]
            assert box.request.spec.image == "docker://swebench/x:latest"
            assert await post("/heartbeat", lease_id=lease_id) == {"ok": True}
            ran = await post("/exec", lease_id=lease_id, command="ls", timeout=5, env={"A": "b"})
            assert (ran["ok"], ran["returncode"], ran["output"]) == (True, 0, "exec")
            assert ran["request"] == {
                "container_id": box.id,
                "command": "ls",
                "timeout": 5.0,
                "env": {"A": "b"},
            }
            assert (await post("/diff", lease_id=lease_id))["output"] == "diff"
            graded = await post("/evaluate", lease_id=lease_id, patch="p", eval_script="e")
            assert graded["output"] == "evaluate"
            async with session.get("/status") as response:
                status = await response.json()
            [row] = status["pool"].pop("nodes")
            assert status == {"ok": True, "pool": {"total_leases": 1}}
            assert row.pop("url") == lease["node_url"]
            assert row == {"active_containers": 1, "max_containers": 3, "healthy": True}
            assert await post("/close", lease_id=lease_id) == {"ok": True}
            assert node.leases() == []
            async with session.post("/exec", json={"lease_id": lease_id, "command": "ls"}) as response:
                body = await response.json()
                assert (response.status, body["ok"]) == (410, False)
                assert lease_id in body["error"]

    asyncio.run(run())


@pytest.mark.parametrize("where", ["user", "password", "query"])
def test_swe_client_may_put_the_token_into_the_address(tmp_path: Path, where: str) -> None:
    async def run() -> None:
        async with serving_pool(tmp_path / "s", []) as (url, _), aiohttp.ClientSession() as session:
            host = url.removeprefix("http://")
            address = {
                "user": f"http://t@{host}/status",
                "password": f"http://:t@{host}/status",
                "query": f"http://{host}/status?token=t",
            }[where]
            async with session.get(address) as response:
                assert response.status == 200

    asyncio.run(run())


def test_swe_client_that_disconnects_early_leaves_no_lease(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode(hold=asyncio.Event())
        patient = replace(FAST, start_timeout_s=600.0)
        async with served(tmp_path, node, patient) as (session, pool):
            waits = asyncio.create_task(session.post("/allocate", json={"image": "host"}))
            await wait_until_async(lambda: len(pool.status().leases) == 1)
            waits.cancel()
            await wait_until_async(lambda: pool.status().leases == [])
            node.hold.set()  # type: ignore[union-attr]
            await wait_until_async(lambda: not any(row.slots for row in pool.fleet) and node.leases() == [])

    asyncio.run(run())
