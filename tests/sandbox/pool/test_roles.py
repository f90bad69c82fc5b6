"""Clients, nodes and operators of a pool: each token opens its own endpoints, each lease serves its owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.sandbox.client.api import PoolClient
from hone.sandbox.contract import LeaseLost
from hone.sandbox.pool.core import Pool, clean_url
from hone.sandbox.pool.server import make_pool_app
from hone.sandbox.remote.wire import OWNER_KEY_HEADER, Beat, LeaseRequest, SpecBody
from hone.utils.http_client import bearer, new_session
from tests.sandbox.pool.simulated import FAST, SimulatedNode, listening, node_app, serving_pool
from tests.waiting import wait_until_async

CLIENT, NODE = bearer("t"), bearer("n")
MINE = LeaseRequest(lease_id="mine", owner="me", spec=SpecBody(env={"SECRET": "x"}))


@asynccontextmanager
async def served(store: Path, node_url: str) -> AsyncIterator[tuple[str, Pool, aiohttp.ClientSession]]:
    async with serving_pool(store, [node_url]) as (url, pool), aiohttp.ClientSession(url) as session:
        await wait_until_async(lambda: not pool.unhealthy())
        yield url, pool, session


def test_client_token_cannot_add_or_remove_a_node(tmp_path: Path) -> None:
    async def run() -> None:
        evil, good = SimulatedNode(), SimulatedNode()
        async with (
            listening(node_app(evil)) as evil_url,
            listening(node_app(good)) as good_url,
            served(tmp_path / "s", good_url) as (url, pool, session),
        ):
            for headers in (CLIENT, {}, bearer("wrong"), bearer("t n"), {**CLIENT, "x-token": "n"}):
                for method, path, body in (
                    ("POST", "/v1/nodes", {"url": evil_url}),
                    ("POST", "/v1/nodes?token=t", {"url": evil_url}),
                    ("POST", "/v1//nodes", {"url": evil_url}),
                    ("POST", "/v1/nodes", {"url": good_url, "state": "draining"}),
                    ("DELETE", f"/v1/nodes?url={good_url}&force=true", None),
                ):
                    async with session.request(method, path, headers=headers, json=body) as response:
                        assert response.status in (401, 404), (headers, path)
            assert [node.url for node in pool.fleet] == [good_url]
            await PoolClient(session, url, "t").allocate(MINE)
            assert evil.created == 0
            async with session.post("/v1/nodes", headers=NODE, json={"url": evil_url}) as response:
                assert response.status == 200  # the holder of the nodes' token may
            async with session.delete(f"/v1/nodes?url={evil_url}", headers=NODE) as response:
                assert response.status == 200

    asyncio.run(run())


@pytest.mark.parametrize(("token", "status"), [("t", 401), ("", 200)])
def test_pool_without_tokens_alone_takes_nodes_from_everyone(tmp_path: Path, token: str, status: int) -> None:
    async def run() -> None:
        async with (
            new_session() as session,
            Pool(tmp_path / "s", lambda url: SimulatedNode(), timing=FAST) as pool,
            listening(make_pool_app(pool, session, token=token, node_token="")) as url,
        ):
            asked = {"url": "http://a"}
            async with session.post(f"{url}/v1/nodes", headers=bearer(token), json=asked) as response:
                assert response.status == status

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/leases"), ("DELETE", "/v1/leases/mine"), ("POST", "/allocate"), ("POST", "/exec")],
)
def test_node_token_leases_no_sandbox(tmp_path: Path, method: str, path: str) -> None:
    async def run() -> None:
        async with serving_pool(tmp_path / "s", []) as (url, _), aiohttp.ClientSession(url) as session:
            async with session.request(method, path, headers=NODE, json={}) as response:
                assert response.status == 401
            for headers in (NODE, CLIENT):
                async with session.get("/v1/status", headers=headers) as response:
                    assert response.status == 200

    asyncio.run(run())


async def steal(session: aiohttp.ClientSession, headers: dict[str, str], lease_id: str) -> None:
    """Try every endpoint on a lease of which everything but the owner's key is known."""
    for owner in ("me", "swe-env", "other"):
        body = MINE.model_copy(update={"lease_id": lease_id, "owner": owner}).model_dump_json()
        async with session.post("/v1/leases", data=body, headers=headers) as response:
            assert response.status == 410, await response.text()
            assert "capability" not in await response.text()
    beats = {"leases": [{"lease_id": lease_id, "generation": n} for n in range(20)]}
    async with session.post("/v1/heartbeats", json=beats, headers=headers) as response:
        assert (await response.json())["lost"] == [lease_id] * 20
    for method in ("GET", "DELETE"):
        async with session.request(method, f"/v1/leases/{lease_id}", headers=headers) as response:
            assert response.status == 410
    for owner in ("me", "swe-env"):
        async with session.delete(f"/v1/owners/{owner}", headers=headers) as response:
            assert (await response.json())["closed"] == 0


async def steal_as_known_client(session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
    for path in ("/exec", "/diff", "/evaluate", "/heartbeat", "/close"):
        body = {"lease_id": "mine", "command": "id", "patch": "", "eval_script": "true"}
        async with session.post(path, json=body, headers=headers) as response:
            assert response.status == 410, path


@pytest.mark.parametrize("key", ["", "guessed"])
def test_lease_of_another_owner_is_out_of_reach(tmp_path: Path, key: str) -> None:
    """Also for a client that knows its id, owner and generation, and after a restart of the pool."""
    stranger = {**CLIENT, OWNER_KEY_HEADER: key} if key else CLIENT

    async def run() -> None:
        node = SimulatedNode()
        async with listening(node_app(node)) as node_url:
            for _ in range(2):
                async with served(tmp_path / "s", node_url) as (url, _, session):
                    owner = PoolClient(session, url, "t", owner_key="secret")
                    lease = await owner.allocate(MINE)
                    await steal(session, stranger, "mine")
                    await steal_as_known_client(session, stranger)
                    beats = [Beat(lease_id="mine", generation=lease.generation)]
                    assert await owner.heartbeat(beats) == []
                    assert (await owner.allocate(MINE)).generation == lease.generation
                    body = {"lease_id": "mine", "command": "id"}
                    mine = {**CLIENT, OWNER_KEY_HEADER: "secret"}
                    async with session.post("/exec", json=body, headers=mine) as response:
                        assert response.status == 200
            assert node.leases() == ["mine"]

    asyncio.run(run())


def test_owner_closes_its_leases_by_its_key(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode()
        async with (
            listening(node_app(node)) as node_url,
            served(tmp_path / "s", node_url) as (url, _, session),
        ):
            owner, namesake = (PoolClient(session, url, "t", owner_key=key) for key in ("a", "b"))
            await owner.allocate(MINE)
            await namesake.allocate(MINE.model_copy(update={"lease_id": "theirs"}))
            await owner.close_owner("me")
            assert node.leases() == ["theirs"]
            with pytest.raises(LeaseLost):
                await owner.close("theirs")

    asyncio.run(run())


def test_lease_of_a_known_client_is_reached_by_its_own_endpoints_alone(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode()
        async with (
            listening(node_app(node)) as node_url,
            served(tmp_path / "s", node_url) as (_, _, session),
        ):
            async with session.post("/allocate", json={"image": "host"}, headers=CLIENT) as response:
                lease_id = (await response.json())["lease_id"]
            await steal(session, CLIENT, lease_id)
            await steal(session, {**CLIENT, OWNER_KEY_HEADER: "made here"}, lease_id)
            for path in ("/heartbeat", "/exec", "/close"):
                body = {"lease_id": lease_id, "command": "id"}
                async with session.post(path, json=body, headers=CLIENT) as response:
                    assert response.status == 200, path

    asyncio.run(run())


def test_status_names_leases_to_their_owner_and_to_operators_alone(tmp_path: Path) -> None:
    async def run() -> None:
        node = SimulatedNode()
        async with (
            listening(node_app(node)) as node_url,
            served(tmp_path / "s", node_url) as (url, _, session),
        ):
            await PoolClient(session, url, "t", owner_key="secret").allocate(MINE)
            await PoolClient(session, url, "t").allocate(MINE.model_copy(update={"lease_id": "keyless"}))
            async with session.post("/allocate", json={"image": "host"}, headers=CLIENT) as response:
                swe = (await response.json())["lease_id"]

            async def seen(headers: dict[str, str]) -> list[str]:
                async with session.get("/v1/status", headers=headers) as response:
                    text = await response.text()
                assert "SECRET" not in text
                rows: list[dict[str, Any]] = json.loads(text)["leases"]
                assert len(rows) == 3
                assert all(bool(row["lease_id"]) == bool(row["owner"]) for row in rows)
                return sorted(row["lease_id"] for row in rows if row["lease_id"])

            assert await seen(CLIENT) == []
            assert await seen({**CLIENT, OWNER_KEY_HEADER: "guessed"}) == []
            assert await seen({**CLIENT, OWNER_KEY_HEADER: "secret"}) == ["mine"]
            assert await seen(NODE) == ["keyless", "mine", swe]

    asyncio.run(run())


# --- addresses of nodes


@pytest.mark.parametrize(
    "url",
    [
        *("http://a\nb", "http://a\tb:1", "http://a\r\n:5000", "http://a:5\n000", "http://a\x1b[2J"),
        *("http://a/\x9b", "http://a\u202eb", "http://\u0430", "http://a b", "http://a\x00", "\nhttp://a"),
        *("http://a\n", "http://u:p@a", "http://a?x", "http://a#x", "ftp://a", "http://", "http://a:99999"),
        *("http://a:", "http://a:x", "//a", "http:///x", "http://[::1", "http://-a", "http://a/%0a"),
        "http://" + "a" * 600,
    ],
)
def test_address_with_anything_but_host_port_and_path_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        clean_url(url)


@given(st.text(max_size=30))
def test_accepted_address_is_printable_ascii(text: str) -> None:
    for url in (text, f"http://{text}", f"http://a:{text}", f"http://a/{text}"):
        try:
            cleaned = clean_url(url)
        except ValueError:
            continue
        assert cleaned.isascii()
        assert cleaned.isprintable()
        assert " " not in cleaned
        assert clean_url(cleaned) == cleaned


@pytest.mark.parametrize(
    ("url", "cleaned"),
    [
        ("http://node-1:5000/", "http://node-1:5000"),
        ("HTTPS://Node_1.lan/base//", "https://node_1.lan/base"),
        ("http://10.0.0.1:05000", "http://10.0.0.1:5000"),
        ("http://[::1]:5000", "http://[::1]:5000"),
    ],
)
def test_address_of_a_node_has_one_spelling(url: str, cleaned: str) -> None:
    assert clean_url(url) == cleaned
