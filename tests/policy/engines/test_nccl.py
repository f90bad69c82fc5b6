"""NCCL updates without the collective: the requests in order, and the tensors of rank 0."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web

from hone.policy.engine import EngineError
from hone.policy.engines.client import Http, WeightMismatch, new_session
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.nccl import GROUP, NcclUpdates, Rendezvous, Sender, VllmReceiver, open_sender
from hone.policy.engines.replica import WeightProbe
from hone.policy.errors import PolicyError
from hone.policy.settings import ServerEngineSettings
from hone.train.publish import published
from tests.policy.engines.conftest import OpenFleet
from tests.policy.engines.sglang_server import toy_logprobs
from tests.policy.engines.test_fleet import PROMPT, sampling
from tests.virtual_time import run as run_virtual

SETTINGS = ServerEngineSettings(kind="sglang", weight_sync="nccl")


def updates_of(fleet: Fleet, model: Any, tokenizer: Any, rank_0: Sender, seed: int = 0) -> NcclUpdates:
    """Updates whose probe is of the toy's weights with `seed`; over NCCL a toy keeps those of seed 0."""
    logprobs = toy_logprobs(seed, PROMPT[-1], len(tokenizer)).astype(np.float32)
    probe = WeightProbe(prompt=tuple(PROMPT), logprobs=logprobs, tolerance=1e-2)
    return NcclUpdates(fleet, SETTINGS, rank_0, lambda: published(model), lambda: probe)


class Recorder:
    """Rank 0 without a network."""

    def __init__(self) -> None:
        self.joined: list[Rendezvous] = []
        self.in_group = False
        self.left = 0
        self.sent: list[list[tuple[int, ...]]] = []

    def address(self) -> tuple[str, int]:
        return "10.0.0.7", 5000

    def join(self, meeting: Rendezvous) -> None:
        self.joined.append(meeting)
        self.in_group = True

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        self.sent.append([tuple(tensor.shape) for tensor in tensors])

    def leave(self) -> None:
        self.left += 1
        self.in_group = False


def test_servers_receive_the_manifest_and_the_version(open_toys: OpenFleet, model, tokenizer):
    async def run():
        rank_0 = Recorder()
        async with open_toys(servers=2) as (fleet, servers):
            updates = updates_of(fleet, model, tokenizer, rank_0)
            await updates.publish(1)
            await updates.publish(2)
            reply = await fleet.generate(PROMPT, sampling(), session="s")
            return rank_0, [server.requests for server in servers], reply

    rank_0, requests, reply = run_virtual(run())
    assert set(reply.version.tolist()) == {2}
    (meeting,) = rank_0.joined  # the second update finds the same servers
    assert meeting == {"master_address": "10.0.0.7", "master_port": 5000, "world_size": 3}
    own = {name: tuple(p.shape) for name, p in model.named_parameters()}
    offsets = []
    for told in requests:
        about_weights = [
            (path, body)
            for path, body in told
            if path not in ("/generate", "/continue_generation", "/weights_checker")
        ]
        assert [path for path, _ in about_weights] == [
            "/destroy_weights_update_group",
            "/init_weights_update_group",
            *("/pause_generation", "/update_weights_from_distributed") * 2,
        ]
        group, update = about_weights[1][1], about_weights[3][1]
        offsets.append(group.pop("rank_offset"))
        assert group == {**meeting, "group_name": GROUP, "backend": "nccl"}
        assert sorted(update["names"]) == sorted(own)
        assert update["dtypes"] == ["float32"] * len(own)
        assert update["shapes"] == [list(own[name]) for name in update["names"]]
        assert rank_0.sent == [[own[name] for name in update["names"]]] * 2
        assert (update["weight_version"], update["flush_cache"], update["group_name"]) == ("1", True, GROUP)
    assert sorted(offsets) == [1, 2]


def test_changed_servers_form_a_new_group(open_toys: OpenFleet, model, tokenizer):
    async def run():
        rank_0 = Recorder()
        async with open_toys(servers=2) as (fleet, servers):
            updates = updates_of(fleet, model, tokenizer, rank_0)
            await updates.publish(1)
            await servers[0].stop()
            await asyncio.sleep(10)  # its supervisor notices
            await updates.publish(2)
            return rank_0, fleet.version

    rank_0, version = run_virtual(run())
    assert [meeting["world_size"] for meeting in rank_0.joined] == [3, 2]
    assert version == 2


def test_update_without_a_healthy_server_is_an_error(open_toys: OpenFleet, model, tokenizer):
    async def run():
        rank_0 = Recorder()
        async with open_toys() as (fleet, (server,)):
            await server.stop()
            await asyncio.sleep(10)  # its supervisor notices
            with pytest.raises(EngineError, match="no engine server is healthy: "):
                await updates_of(fleet, model, tokenizer, rank_0).publish(1)
        return rank_0.sent

    assert run_virtual(run()) == []


def note_stop(replica: Any, stopped: list[str]) -> None:
    """Add the name of the replica's process to `stopped` at each stop."""

    async def stop() -> None:
        stopped.append(replica.process.name)

    replica.process.stop = stop


def test_restarted_rank_0_forms_a_new_group(open_toys: OpenFleet, model, tokenizer):
    async def run():
        rank_0 = Recorder()
        async with open_toys() as (fleet, _):
            updates = updates_of(fleet, model, tokenizer, rank_0)
            await updates.publish(1)
            rank_0.in_group = False
            await updates.publish(2)
            return rank_0, fleet.version

    rank_0, version = run_virtual(run())
    assert (len(rank_0.joined), version) == (2, 2)


def test_dead_rank_0_restarts_the_servers_and_the_next_update_succeeds(
    open_toys: OpenFleet, model, tokenizer
):
    class Dead(Exception):
        """What ranks raise when one of them has died."""

    class Dies(Recorder):
        def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
            super().broadcast(tensors)
            if len(self.sent) == 1:
                raise Dead

    async def run():
        rank_0 = Dies()
        async with open_toys(servers=2) as (fleet, servers):
            for server in servers:
                server.holds_nccl = True  # its collective does not end
            stopped: list[str] = []
            for replica in fleet._replicas:
                note_stop(replica, stopped)
            updates = updates_of(fleet, model, tokenizer, rank_0)
            with pytest.raises(Dead):
                await updates.publish(1)
            assert sorted(stopped) == sorted(server.url for server in servers)
            assert not any(replica.healthy for replica in fleet._replicas)
            for server in servers:
                server.holds_nccl = False
            await updates.publish(1)
            return rank_0, fleet.version

    rank_0, version = run_virtual(run())
    assert (len(rank_0.joined), version) == (2, 1)


def test_failing_receiver_ends_a_blocked_broadcast(open_toys: OpenFleet, model, tokenizer):
    """The collective of a receiver that rejects the update never ends by itself."""

    class Blocking(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.aborted = threading.Event()

        def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
            assert self.aborted.wait(60)
            self.sent.append([])

        def leave(self) -> None:
            if self.joined:
                self.aborted.set()

    async def run():
        rank_0 = Blocking()
        async with open_toys() as (fleet, (server,)):
            server.rejects_nccl = True
            changes: list[BaseException | None] = []
            changed = asyncio.Event()
            change_weights = fleet.change_weights

            async def noted(version: int, change: Any) -> None:
                async def recorded(replicas: Any) -> list[BaseException | None]:
                    changes.extend(await change(replicas))
                    changed.set()
                    return changes

                await change_weights(version, recorded)

            fleet.change_weights = noted
            publishing = asyncio.create_task(updates_of(fleet, model, tokenizer, rank_0).publish(1))
            await changed.wait()
            publishing.cancel()
            return changes, rank_0.aborted.is_set()

    (error,), aborted = run_virtual(run())
    assert "rejected the NCCL update" in str(error)
    assert aborted


def test_other_weights_after_nccl_stop_the_run(open_toys: OpenFleet, model, tokenizer):
    async def run():
        async with open_toys() as (fleet, _):
            with pytest.raises(WeightMismatch, match="other weights than version 1"):
                await updates_of(fleet, model, tokenizer, Recorder(), seed=1).publish(1)

    run_virtual(run())


def test_nccl_with_the_trainer_on_a_cpu_is_refused():
    with pytest.raises(PolicyError, match=r'weight_sync = "nccl" needs .* on cpu: set engine.weight_sync'):
        open_sender("vllm", torch.device("cpu"))


@asynccontextmanager
async def recorded() -> AsyncGenerator[tuple[str, list[tuple[str, Any]]]]:
    """A server that records requests and answers like vLLM 0.32."""
    told: list[tuple[str, Any]] = []
    answers = {"/get_world_size": {"world_size": 2}, "/reset_prefix_cache": {"success": True}}

    async def note(request: web.Request) -> web.Response:
        told.append((request.path, await request.json() if request.can_read_body else None))
        return web.json_response(answers.get(request.path, {"message": "done"}))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", note)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", told
    finally:
        await runner.cleanup()


def test_vllm_requests_follow_its_documentation():
    async def run():
        async with recorded() as (url, told), new_session() as session:
            receiver = VllmReceiver(Http(session, url))
            size = await receiver.world_size()
            place = {"master_address": "10.0.0.1", "master_port": 5000, "world_size": 3, "rank_offset": 1}
            await receiver.join(place, 10.0)
            manifest = {"names": ["w"], "dtypes": ["bfloat16"], "shapes": [[2, 3]]}
            await receiver.receive(manifest, "4", 10.0)
            await receiver.leave()
            return size, told

    size, told = run_virtual(run())
    assert size == 2
    init = {
        "master_address": "10.0.0.1",
        "master_port": 5000,
        "rank_offset": 1,
        "world_size": 3,
        "packed": False,
    }
    assert told[1:] == [
        ("/init_weight_transfer_engine", {"init_info": init}),
        ("/start_weight_update", None),
        (
            "/update_weights",
            {"update_info": {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}},
        ),
        ("/finish_weight_update", {"weight_version": "4"}),
        ("/reset_prefix_cache", None),
        ("/shutdown_weight_transfer_engine", None),
    ]
