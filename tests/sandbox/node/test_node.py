"""What the server itself decides, over real HTTP: who may, how long, how often, how much."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from hone.sandbox import ProviderUnavailable, SandboxLost, SandboxSpec, TooLarge, Unauthorized
from hone.sandbox.client.api import NodeClient
from hone.sandbox.client.sandbox import RemoteSandbox
from hone.sandbox.remote.wire import CreateReply, CreateRequest, SpecBody
from hone.utils.http_client import bearer
from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import TOKEN, served
from tests.virtual_time import run as run_virtual
from tests.waiting import wait_until_async

LONG_S = 60.0


class Served:
    """A node over an idle provider, and requests to it."""

    def __init__(self, provider: IdleProvider, session: aiohttp.ClientSession, url: str) -> None:
        self.provider, self.session, self.url = provider, session, url
        self.node = NodeClient(session, url, TOKEN)

    async def create(self, *, ttl_s: float = LONG_S, key: str = "") -> CreateReply:
        request = CreateRequest(spec=SpecBody(), ttl_s=ttl_s)
        return await self.node.create(request, key=key or secrets.token_hex(8))

    async def sandbox(self, *, ttl_s: float = LONG_S) -> RemoteSandbox:
        return self.remote(await self.create(ttl_s=ttl_s))

    def remote(self, made: CreateReply) -> RemoteSandbox:
        return RemoteSandbox(
            self.session,
            node_url=self.url,
            sandbox_id=made.id,
            capability=made.capability,
            spec=SandboxSpec(workdir="/testbed"),
            enforced=made.enforced,
            on_close=lambda: self.node.destroy(made.id),
        )

    async def ask(
        self, method: str, path: str, body: object = None, *, token: str = TOKEN, key: str = ""
    ) -> tuple[int, dict[str, object]]:
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        headers = bearer(token) | ({"Idempotency-Key": key} if key else {})
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def is_empty(self) -> bool:
        return not await self.living()

    async def is_occupied(self) -> bool:
        return not await self.is_empty()

    async def is_ill(self) -> bool:
        return not await self.node.healthy()

    async def living(self) -> list[str]:
        return [row.id for row in (await self.node.info()).sandboxes]


NodeTest = Callable[[Served], Coroutine[None, None, None]]


def with_node(**options: int) -> Callable[[NodeTest], Callable[[Path], None]]:
    """Give a test a served node with these options."""

    def decorate(test: NodeTest) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            run_virtual(_serve(test, tmp_path / "state", options))

        run.__name__ = test.__name__
        return run

    return decorate


async def _serve(test: NodeTest, state_dir: Path, options: dict[str, int]) -> None:
    provider = IdleProvider()
    async with (
        served(provider, state_dir, **options) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        provider.forget()
        await test(Served(provider, session, url))
    assert await asyncio.to_thread(lambda: list(state_dir.iterdir())) == []


# --- who may


@with_node()
async def test_no_body_is_awaited_from_a_client_without_a_token(node: Served) -> None:
    """Their heads announce what would fill the memory; a client with the token is asked for it."""
    made = await node.create(ttl_s=10_000)
    parts = urlsplit(node.url)
    for method, path in (
        *(("POST", f"/container/{name}") for name in ("create", "exec", "diff", "evaluate", "destroy")),
        *(("POST", f"/v1/{name}") for name in ("sandboxes", "renewals", f"sandboxes/{made.id}/exec")),
        *(("PUT", f"/v1/sandboxes/{made.id}/{name}?path=x") for name in ("files", "archive")),
    ):
        for token in ("wrong", TOKEN):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = f"{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {token}\r\n"
            writer.write(f"{head}content-length: 1000000\r\n\r\n".encode())
            status = (await reader.readline()).split()[1]
            assert status == (b"401" if token == "wrong" else b"400"), path  # 400: nothing arrived in time
            writer.transport.abort()


@with_node()
async def test_capability_grants_access_to_its_sandbox_only(node: Served) -> None:
    mine, other = await node.create(), await node.create()
    run = {"command": "true"}
    assert (await node.ask("POST", f"/v1/sandboxes/{mine.id}/exec", run, token=mine.capability))[0] == 200
    for method, path, body in (
        ("POST", f"/v1/sandboxes/{other.id}/exec", run),
        ("GET", f"/v1/sandboxes/{other.id}/files?path=x", None),
        ("PUT", f"/v1/sandboxes/{other.id}/files?path=x", b"x"),
        ("GET", f"/v1/sandboxes/{other.id}/archive?path=x", None),
        ("PUT", f"/v1/sandboxes/{other.id}/archive?path=x", b"x"),
        ("DELETE", f"/v1/sandboxes/{other.id}", None),
        ("DELETE", f"/v1/sandboxes/{other.id}/exec", None),
        ("POST", f"/v1/sandboxes/{other.id}/start", None),
        ("POST", "/container/exec", {"container_id": other.id, "command": "true"}),
        ("POST", "/container/destroy", {"container_id": other.id}),
        ("POST", "/container/create", {"image": "host"}),
        ("POST", "/v1/sandboxes", {"spec": {}}),
        ("POST", "/v1/renewals", {"ids": [mine.id], "ttl_s": 1}),
        ("GET", "/v1/node", None),
        ("GET", "/status", None),
        ("GET", "/images", None),
        ("GET", "/metrics", None),
    ):
        for token in (mine.capability, "", "wrong"):
            status, reply = await node.ask(method, path, body, token=token)
            assert (status, reply["code"]) == (401, "unauthorized"), (method, path, token)
    assert sorted(await node.living()) == sorted([mine.id, other.id])


@with_node()
async def test_guessed_capabilities_and_ids_are_refused(node: Served) -> None:
    made = [await node.create() for _ in range(3)]
    assert len({one.capability for one in made}) == 3
    assert all(len(one.capability) >= 43 for one in made)
    with pytest.raises(SandboxLost):
        await node.remote(made[0].model_copy(update={"id": "0" * 24})).exec("true")
    with pytest.raises(Unauthorized):
        await node.remote(made[0].model_copy(update={"capability": made[1].capability})).exec("true")


@with_node()
async def test_health_needs_no_token(node: Served) -> None:
    status, reply = await node.ask("GET", "/healthz", token="")
    assert (status, reply) == (200, {"ok": True, "running_containers": "0"})


# --- how long


@with_node()
async def test_sandbox_expires_unless_renewed(node: Served) -> None:
    kept, left = await node.create(ttl_s=2.0), await node.create(ttl_s=2.0)
    while left.id in await node.living():
        assert await node.node.renew([kept.id], LONG_S) == []
        await asyncio.sleep(0.5)
    assert await node.node.renew([kept.id, left.id, "never"], LONG_S) == [left.id, "never"]
    with pytest.raises(SandboxLost):
        await node.remote(left).exec("true")


@with_node()
async def test_ending_sandbox_cannot_be_renewed(node: Served) -> None:
    node.provider.may_close.clear()
    made = await node.create(ttl_s=0.2)
    await wait_until_async(lambda: node.provider.closings == 1)
    assert await node.node.renew([made.id], LONG_S) == [made.id]
    with pytest.raises(SandboxLost, match="ending"):
        await node.remote(made).exec("true")
    node.provider.may_close.set()
    await wait_until_async(lambda: not node.provider.living)


@with_node(max_sandboxes=1)
async def test_slow_teardown_runs_once_and_keeps_its_slot(node: Served) -> None:
    node.provider.may_close.clear()
    made = await node.create(ttl_s=0.2)
    await wait_until_async(lambda: node.provider.closings == 1)
    closing = asyncio.create_task(node.node.destroy(made.id))
    await asyncio.sleep(5)  # many rounds of the reaper
    assert (node.provider.closings, closing.done()) == (1, False)
    with pytest.raises(ProviderUnavailable, match="full"):
        await node.create()
    node.provider.may_close.set()
    await closing
    await node.create()


@with_node()
async def test_failed_teardown_is_retried_and_keeps_its_slot(node: Served) -> None:
    node.provider.close_failures = 2
    made = await node.create()
    closing = asyncio.create_task(node.node.destroy(made.id))
    await wait_until_async(lambda: node.provider.closings >= 2)
    node.provider.may_close.clear()  # so that the next try is not over before the request
    assert made.id in await node.living()
    node.provider.may_close.set()
    await closing
    assert node.provider.closings == 3
    assert await node.living() == []


@with_node()
async def test_closing_a_sandbox_ends_its_commands(node: Served) -> None:
    sandbox = await node.sandbox()
    running = asyncio.create_task(sandbox.exec(["sleep"], timeout_s=LONG_S))
    await wait_until_async(lambda: node.provider.commands == [["sleep"]])
    await node.node.destroy(sandbox.id)
    with pytest.raises(SandboxLost):
        await running


# --- how often


@with_node()
async def test_the_same_key_makes_one_sandbox(node: Served) -> None:
    node.provider.may_start.clear()
    first, second = (asyncio.create_task(node.create(key="k")) for _ in range(2))
    await wait_until_async(node.is_occupied)
    node.provider.may_start.set()
    assert await first == await second == await node.create(key="k")
    assert len(await node.living()) == 1
    with pytest.raises(ValueError, match="another request"):
        await node.create(key="k", ttl_s=1.0)


@with_node()
async def test_failed_start_can_be_retried_with_the_same_key(node: Served) -> None:
    node.provider.broken = "no room at all"
    with pytest.raises(ProviderUnavailable, match="no room at all"):
        await node.create(key="k")
    node.provider.broken = ""
    assert (await node.create(key="k")).id in await node.living()


@with_node()
async def test_the_same_key_runs_a_command_once(node: Served) -> None:
    made = await node.create()
    path = f"/v1/sandboxes/{made.id}/exec"
    first = await node.ask("POST", path, {"command": ["count"]}, key="k")
    assert first == await node.ask("POST", path, {"command": ["count"]}, key="k")
    assert node.provider.commands == [["count"]]
    assert (await node.ask("POST", path, {"command": ["other"]}, key="k"))[0] == 400
    other = await node.create()
    await node.ask("POST", f"/v1/sandboxes/{other.id}/exec", {"command": ["count"]}, key="k")
    assert len(node.provider.commands) == 2
    assert (await node.ask("POST", path, {"command": ["x"]}, key="k" * 129))[0] == 400


@with_node()
async def test_cancelled_start_leaves_no_sandbox(node: Served) -> None:
    node.provider.may_start.clear()
    starting = asyncio.create_task(node.create())
    await wait_until_async(node.is_occupied)
    starting.cancel()
    await asyncio.wait({starting})
    node.provider.may_start.set()
    await wait_until_async(node.is_empty)
    assert not node.provider.living


@with_node()
async def test_start_cancelled_before_it_arrives_makes_no_sandbox(node: Served) -> None:
    assert (await node.ask("DELETE", "/v1/sandboxes", key="k"))[0] == 200
    status, reply = await node.ask("POST", "/v1/sandboxes", {"spec": {}}, key="k")
    assert (status, reply["error"]) == (422, "the request was cancelled by its idempotency key")
    made = await node.create(key="other")
    await node.ask("DELETE", "/v1/sandboxes", key="other")
    assert made.id not in await node.living()
    assert node.provider.started == 1


@with_node()
async def test_a_cancelled_command_is_cancelled_on_the_node(node: Served) -> None:
    sandbox = await node.sandbox()
    running = asyncio.create_task(sandbox.exec(["sleep"], timeout_s=LONG_S))
    await wait_until_async(lambda: node.provider.commands == [["sleep"]])
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    await wait_until_async(lambda: node.provider.cancelled == [["sleep"]])
    assert (await sandbox.exec(["hello"])).text == "hello"


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_cancels_a_command_without_key(stream: bool, tmp_path: Path) -> None:
    async def leave(node: Served) -> None:
        made = await node.create()
        body = {"command": ["sleep"], "timeout_s": LONG_S, "stream": stream}
        asking = asyncio.create_task(node.ask("POST", f"/v1/sandboxes/{made.id}/exec", body))
        await wait_until_async(lambda: node.provider.commands == [["sleep"]])
        asking.cancel()
        await wait_until_async(lambda: node.provider.cancelled == [["sleep"]])

    with_node()(leave)(tmp_path)


# --- how much


@with_node(max_sandboxes=1)
async def test_full_node_returns_a_retryable_error(node: Served) -> None:
    made = await node.create()
    with pytest.raises(ProviderUnavailable, match="its limit is 1 sandboxes") as refused:
        await node.create()
    assert refused.value.retryable
    await node.node.destroy(made.id)
    await node.create()


@with_node()
async def test_a_body_that_is_too_large_is_refused(node: Served) -> None:
    sandbox = await node.sandbox()
    for path in ("/v1/sandboxes", "/v1/renewals"):
        status, reply = await node.ask("POST", path, b"x" * (2 << 20))
        assert (status, reply["code"]) == (413, "too_large")
    with pytest.raises(TooLarge):
        await sandbox.exec(["cat"], stdin=b"x" * (80 << 20))

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * (1 << 16)

    async with node.session.post(
        f"{node.url}/v1/renewals", data=endless(), headers=bearer(TOKEN)
    ) as response:
        assert response.status == 413


@with_node(max_requests=3)
async def test_excess_concurrent_requests_are_refused(node: Served) -> None:
    sandbox = await node.sandbox()
    running = [asyncio.create_task(sandbox.exec(["sleep"], timeout_s=LONG_S)) for _ in range(3)]
    await wait_until_async(lambda: len(node.provider.commands) == 3)
    with pytest.raises(ProviderUnavailable, match="3 requests") as refused:
        await node.node.info()
    assert refused.value.retryable
    assert (await node.ask("GET", "/healthz"))[0] == 200
    for task in running:
        task.cancel()
    await asyncio.wait(running)


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/renewals", "/container/create", "/container/exec"])
@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b'{"image": "\xff"}', b"[]", b"{", b'{"image": "\\ud800"}', b"null"]
)
def test_malformed_body_is_a_typed_error(path: str, body: bytes, tmp_path: Path) -> None:
    async def send(node: Served) -> None:
        status, reply = await node.ask("POST", path, body)
        assert (status, reply["ok"], reply["code"]) == (400, False, "bad_request")

    with_node()(send)(tmp_path)


@with_node()
async def test_unknown_fields_are_refused_by_v1_and_ignored_for_swe(node: Served) -> None:
    status, reply = await node.ask("POST", "/v1/sandboxes", {"spec": {}, "ttl": 5})
    assert (status, reply["code"]) == (400, "bad_request")
    assert (await node.ask("POST", "/container/create", {"image": "host", "ttl": 5}))[0] == 200


@with_node()
async def test_rootfs_image_is_refused(node: Served) -> None:
    with pytest.raises(ProviderUnavailable, match="not directories") as refused:
        await node.node.create(CreateRequest(spec=SpecBody(image="rootfs:/")), key="k")
    assert not refused.value.retryable


@with_node()
async def test_output_for_a_stalled_reader_is_bounded(node: Served) -> None:
    made = await node.create()
    body = json.dumps({"command": ["flood"], "timeout_s": LONG_S, "stream": True})
    address = f"{node.url}/v1/sandboxes/{made.id}/exec"
    async with node.session.post(address, data=body, headers=bearer(TOKEN)) as response:
        await wait_until_async(lambda: node.provider.cancelled == [["flood"]])  # while nothing is read
        last = b""
        async for chunk in response.content.iter_any():
            last = (last + chunk)[-1000:]
    assert json.loads(last.splitlines()[-1])["code"] == "too_large"


# --- whether it works


@with_node()
async def test_health_follows_failure_and_recovery_of_the_provider(node: Served) -> None:
    assert await node.node.healthy()
    node.provider.broken = "the daemon is gone"
    with pytest.raises(ProviderUnavailable):
        await node.create()
    await wait_until_async(node.is_ill)
    status, reply = await node.ask("GET", "/healthz")
    assert status == 503
    assert "the daemon is gone" in str(reply["error"])
    assert await node.ask("GET", "/healthz", token="") == (503, {"ok": False, "running_containers": "0"})
    node.provider.broken = ""
    await node.create()
    await wait_until_async(node.node.healthy)


@with_node()
async def test_metrics_count_starts_commands_and_refusals(node: Served) -> None:
    sandbox = await node.sandbox()
    await sandbox.exec(["hello"])
    node.provider.broken = "no"
    with pytest.raises(ProviderUnavailable):
        await node.create()
    async with node.session.get(f"{node.url}/metrics", headers=bearer(TOKEN)) as response:
        lines = (await response.text()).splitlines()
    for line in (
        'hone_node_sandboxes{state="running"} 1.0',
        "hone_node_starts_total 1.0",
        'hone_node_start_failures_total{code="provider_unavailable"} 1.0',
        "hone_node_exec_seconds_count 1.0",
        "hone_node_output_bytes_total 5.0",
        'hone_node_refused_total{code="provider_unavailable"} 1.0',
    ):
        assert line in lines, line


@with_node()
async def test_unknown_path_is_a_typed_error(node: Served) -> None:
    assert (await node.ask("GET", "/nothing"))[0] == 404
    assert (await node.ask("GET", "/v1/sandboxes"))[1]["code"] == "bad_request"


@with_node()
async def test_dead_node_raises_sandbox_lost(node: Served) -> None:
    made = await node.create()
    gone = RemoteSandbox(
        node.session,
        node_url="http://127.0.0.1:1",
        sandbox_id=made.id,
        capability=made.capability,
        spec=SandboxSpec(workdir="/testbed"),
        enforced={},
        on_close=lambda: NodeClient(node.session, "http://127.0.0.1:1", TOKEN).destroy(made.id),
    )
    attempts = (
        gone.exec("true"),
        gone.exec("true", on_output=lambda *_: None),
        gone.read("x"),
        gone.write("x", b""),
    )
    for failure in await asyncio.gather(*attempts, return_exceptions=True):
        assert isinstance(failure, SandboxLost)
        assert "cannot be reached" in str(failure)
    await gone.close()
