"""A node and a pool over real sandboxes: not reached from inside; a lease serves its holder alone."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.utils.http_client import bearer
from tests.attacks.sandbox.attack_target import attack, control
from tests.sandbox.node.served import TOKEN, served
from tests.sandbox.pool.simulated import serving_pool
from tests.waiting import wait_until_async

POOL_TOKEN = "t"


@dataclass(frozen=True, slots=True)
class Floor:
    session: aiohttp.ClientSession
    node_url: str
    pool_url: str

    async def ask(self, method: str, url: str, token: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """One request; its status and its reply."""
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, url, headers=bearer(token), data=data) as response:
            return response.status, json.loads(await response.read())

    async def lease(self, name: str) -> dict[str, Any]:
        body = {"lease_id": name, "owner": f"owner-{name}", "spec": {}}
        status, reply = await self.ask("POST", f"{self.pool_url}/v1/leases", POOL_TOKEN, body)
        assert status == 200, reply
        return reply

    async def run(
        self, lease: dict[str, Any], command: object, capability: str
    ) -> tuple[int, dict[str, Any]]:
        url = f"{lease['node_url']}/v1/sandboxes/{lease['sandbox_id']}/exec"
        return await self.ask("POST", url, capability, {"command": command, "timeout_s": 60})


@asynccontextmanager
async def floor(base: Path) -> AsyncIterator[Floor]:
    """A pool over a node over this machine's sandboxes, all by HTTP."""
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    async with (
        served(make_provider(settings), base / "node") as node_url,
        serving_pool(base / "store", [node_url], node_token=TOKEN) as (pool_url, pool),
        aiohttp.ClientSession() as session,
    ):
        await wait_until_async(lambda: not pool.unhealthy())
        yield Floor(session, node_url, pool_url)


def test_servers_are_unreachable_from_a_sandbox(tmp_path: Path) -> None:
    """By someone who knows the address and every token."""
    code = """
import urllib.request
for url, token in zip(arguments[::2], arguments[1::2]):
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
    attempt(url, lambda: urllib.request.urlopen(request, timeout=5).status == 200)
"""

    async def run() -> None:
        async with floor(tmp_path) as at:
            port = urlsplit(at.node_url).port
            urls = [f"{at.node_url}/v1/node", f"http://0.0.0.0:{port}/v1/node", f"{at.pool_url}/v1/status"]
            words = [
                word
                for url, token in zip(urls, (TOKEN, TOKEN, POOL_TOKEN), strict=True)
                for word in (url, token)
            ]
            free = await asyncio.to_thread(control, code, *words)
            assert set(free.through) == set(urls)
            settings = SandboxSettings(state_dir=tmp_path / "other", cache_dir=tmp_path.parent / "cache")
            async with make_provider(settings) as provider, await provider.start(SandboxSpec()) as sandbox:
                assert set((await attack(sandbox, code, *words)).refused) == set(urls)

    asyncio.run(run())


def test_sandbox_of_another_client_is_denied(tmp_path: Path) -> None:
    """Not by the capability of one's own, nor through names that resemble it; the control is its holder."""

    async def run() -> None:
        async with floor(tmp_path) as at:
            mine, other = await at.lease("mine"), await at.lease("other")
            assert (await at.run(other, "echo mark > mark; cat mark", other["capability"]))[0] == 200
            base, theirs = f"{at.node_url}/v1/sandboxes", other["sandbox_id"]
            for capability in (
                mine["capability"],
                "",
                mine["capability"] + other["capability"],
                other["sandbox_id"],
            ):
                assert (await at.run(other, "rm mark", capability))[0] == 401
                for path in (
                    f"{mine['sandbox_id']}/../{theirs}",
                    f"{theirs}%2f",
                    f"{theirs}/./",
                    theirs.upper(),
                ):
                    for method, rest in (("POST", "exec"), ("GET", "files?path=mark"), ("DELETE", "")):
                        status, _ = await at.ask(method, f"{base}/{path}/{rest}".rstrip("/"), capability, {})
                        assert status in (400, 401, 404, 405, 410), (status, method, path)
            for path in ("v1/node", "v1/renewals", "status", "metrics"):
                assert (await at.ask("GET", f"{at.node_url}/{path}", mine["capability"]))[0] in (401, 405)
            status, reply = await at.run(other, ["cat", "mark"], other["capability"])
            assert (status, reply["exit_code"]) == (200, 0)

    asyncio.run(run())


def test_stale_generation_is_denied(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as at:
            lease = await at.lease("mine")
            url, now = f"{at.pool_url}/v1/leases/mine", lease["generation"]
            for generation in (now - 1, now + 1, -1, 1 << 40):
                beats = {"leases": [{"lease_id": "mine", "generation": generation}]}
                status, reply = await at.ask("POST", f"{at.pool_url}/v1/heartbeats", POOL_TOKEN, beats)
                assert (status, reply["lost"]) == (200, ["mine"])
                await at.ask("DELETE", f"{url}?generation={generation}", POOL_TOKEN)
                assert (await at.run(lease, "true", lease["capability"]))[0] == 200
            status, _ = await at.ask("DELETE", f"{url}?generation={now}", POOL_TOKEN)
            assert status == 200
            assert (await at.run(lease, "true", lease["capability"]))[0] in (401, 410)
            beats = {"leases": [{"lease_id": "mine", "generation": now}]}
            assert (await at.ask("POST", f"{at.pool_url}/v1/heartbeats", POOL_TOKEN, beats))[1]["lost"] == [
                "mine"
            ]

    asyncio.run(run())


@pytest.mark.full
def test_node_answers_while_its_sandboxes_run_bombs(tmp_path: Path) -> None:
    """Prints how fast: the bound of 50 ms is for a machine that does nothing else."""
    bombs = (
        "b() { b | b & }; b; sleep 1000",
        "yes > /tmp/fill; cat /dev/zero",
        'python3 -c "x = [bytearray(1 << 20) * 8 for _ in range(1000)]"; yes',
    )

    async def run() -> None:
        async with floor(tmp_path) as at:
            leases = [await at.lease(f"bomb{number}") for number in range(len(bombs))]
            waits: list[float] = []

            async def bomb(lease: dict[str, Any], command: str) -> None:
                url = f"{at.node_url}/v1/sandboxes/{lease['sandbox_id']}/exec"
                body = {"command": command, "timeout_s": 3}
                status, _ = await at.ask("POST", url, lease["capability"], body)
                assert status in (200, 410)

            async def watch() -> None:
                while not bombing.done():
                    requested = time.monotonic()
                    assert (await at.ask("GET", f"{at.node_url}/healthz", ""))[0] == 200
                    waits.append(1000 * (time.monotonic() - requested))
                    await asyncio.sleep(0.01)

            bombing = asyncio.gather(*map(bomb, leases, bombs))
            await asyncio.gather(bombing, watch())
            p95 = statistics.quantiles([*waits, *waits], n=20)[-1]  # a slow machine may answer once
            print(f"/healthz answered {len(waits)} times: p95 {p95:.0f} ms, at most {max(waits):.0f} ms")

    asyncio.run(run())
