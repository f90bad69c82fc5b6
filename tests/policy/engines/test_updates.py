"""Weight updates during replies: every token carries the version of the weights that sampled it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from hone.policy.engine import EngineError, Finish, Sampling
from hone.policy.engines.client import (
    CompletionChunk,
    GenerateRequest,
    Http,
    WeightMismatch,
    new_session,
)
from hone.policy.engines.fingerprint import Fingerprint, TensorDigest
from hone.policy.engines.replica import Proof, WeightProbe
from hone.policy.engines.sglang import Sglang
from tests.policy.engines.conftest import OpenFleet, fleet_over, require_exact
from tests.policy.engines.sglang_server import SglangServer, sglang_servers, toy_logprobs
from tests.policy.engines.test_fleet import PROMPT, STOP, broken, cut, sampling
from tests.virtual_time import run as run_virtual

MakeWeights = Callable[[int], Path]


def test_every_server_samples_from_the_new_weights(open_toys: OpenFleet, tokenizer, weights: MakeWeights):
    async def run():
        async with open_toys(servers=2) as (fleet, _):
            await fleet.load_weights(weights(4), 1)
            replies = await asyncio.gather(
                *(fleet.generate(PROMPT, sampling(seed=i), session=f"s{i}") for i in range(6))
            )
            return fleet.version, replies

    version, replies = run_virtual(run())
    assert version == 1
    for reply in replies:
        assert set(reply.version.tolist()) == {1}
        require_exact(PROMPT, reply, {1: 4}, len(tokenizer))


def test_in_flight_update_continues_a_reply_with_new_weights(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights
):
    async def run():
        async with open_toys(partial=True) as (fleet, (server,)):
            server.hold = asyncio.Event()
            reply = asyncio.create_task(
                fleet.generate(PROMPT, sampling(max_tokens=9, stop_token_ids=(313,)), session="s")
            )
            await server.holding.wait()
            server.hold = None  # for what comes after the abort
            await fleet.load_weights(weights(4), 1)
            return await reply, server.generate_requests

    reply, requests = run_virtual(run())
    assert reply.version.tolist() == [0, 0, *[1] * (len(reply.version) - 2)]
    assert (len(reply.token_ids), reply.finish) == (9, Finish.LENGTH)
    require_exact(PROMPT, reply, {0: 0, 1: 4}, len(tokenizer))
    assert requests[1]["input_ids"] == [*PROMPT, *reply.token_ids[:2].tolist()]
    assert requests[1]["sampling_params"]["max_new_tokens"] == 7
    assert requests[1]["sampling_params"]["sampling_seed"] != requests[0]["sampling_params"]["sampling_seed"]


def test_default_update_waits_for_running_replies(open_toys: OpenFleet, tokenizer, weights: MakeWeights):
    async def run():
        async with open_toys() as (fleet, (server,)):
            server.hold = asyncio.Event()
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            await server.holding.wait()
            loading = asyncio.create_task(fleet.load_weights(weights(4), 1))
            await asyncio.sleep(1)  # until it waits for the running reply
            later = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="t"))
            server.hold.set()
            await loading
            return await reply, await later

    before, after = run_virtual(run())
    assert (set(before.version.tolist()), set(after.version.tolist())) == ({0}, {1})
    require_exact(PROMPT, before, {0: 0}, len(tokenizer))
    require_exact(PROMPT, after, {1: 4}, len(tokenizer))


def test_silent_server_blocks_neither_requests_nor_updates(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights
):
    async def run():
        async with open_toys(servers=2) as (fleet, servers):
            for server in servers:
                server.hold = asyncio.Event()
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            begun = [asyncio.create_task(server.holding.wait()) for server in servers]
            await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            (silent,) = (server for server in servers if server.holding.is_set())
            loading = asyncio.create_task(fleet.load_weights(weights(4), 1))
            await asyncio.sleep(1)  # until it holds requests back: the other would use the old weights
            silent.sick = True  # and it never answers what it holds
            for server in servers:
                if server is not silent:
                    server.hold = None
            begun[servers.index(silent) - 1].cancel()
            await loading
            return await reply

    reply = run_virtual(run())
    assert set(reply.version.tolist()) == {1}
    require_exact(PROMPT, reply, {1: 4}, len(tokenizer))


def test_slow_request_is_abandoned_once(tokenizer):
    may_end = asyncio.Event()

    class SlowToEnd(Sglang):
        async def generate(self, request: GenerateRequest, *, timeout_s: float) -> CompletionChunk:
            try:
                return await super().generate(request, timeout_s=timeout_s)
            except asyncio.CancelledError:
                await may_end.wait()
                raise

    async def run():
        async with (
            sglang_servers(tokenizer) as (server,),
            fleet_over([server], tokenizer, SlowToEnd) as fleet,
        ):
            server.hold = asyncio.Event()
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            await server.holding.wait()
            server.sick = True
            await asyncio.sleep(10)  # two starts fail, which abandon the request
            server.sick, server.hold = False, None
            may_end.set()
            return await reply

    require_exact(PROMPT, run_virtual(run()), {0: 0}, len(tokenizer))


def test_request_waiting_for_a_retry_blocks_no_update(open_toys: OpenFleet, weights: MakeWeights):
    async def run():
        async with open_toys() as (fleet, (server,)):
            failed = asyncio.Event()

            def fail(request: web.Request) -> web.Response:
                failed.set()
                return broken(request)

            server.faults = [fail]
            reply = asyncio.create_task(fleet.generate(PROMPT, sampling(), session="s"))
            await failed.wait()
            await fleet.load_weights(weights(4), 1)
            assert not reply.done()
            return await reply

    assert set(run_virtual(run()).version.tolist()) == {1}


def test_server_without_the_new_weights_is_out_of_rotation(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights
):
    async def run():
        async with open_toys(servers=2) as (fleet, (bad, good)):
            bad.update_faults = [broken]
            await fleet.load_weights(weights(4), 1)
            replies = [await fleet.generate(PROMPT, sampling(), session=f"s{i}") for i in range(4)]
            await asyncio.sleep(10)  # its supervisor restarts it
            return replies, len(good.generate_requests), len(bad.generate_requests), bad.label

    replies, good, bad, label = run_virtual(run())
    assert good + bad == 4
    assert good >= 1
    assert label == "1"
    for reply in replies:
        require_exact(PROMPT, reply, {1: 4}, len(tokenizer))


def test_update_that_every_server_rejects_raises_the_reason(open_toys: OpenFleet, tmp_path: Path):
    (tmp_path / "model.safetensors").touch()

    async def run():
        async with open_toys(servers=2) as (fleet, _):
            with pytest.raises(EngineError, match=r"holds no .*safetensors weights"):
                await fleet.load_weights(tmp_path / "nowhere", 5)
            with pytest.raises(
                EngineError, match=r"no engine server loaded weight version 5.*weights iterator"
            ):
                await fleet.load_weights(tmp_path, 5)

    run_virtual(run())


TENSOR = "model.layers.3.mlp.up_proj.weight"


def proof_of(digest: int, probe: WeightProbe | None = None) -> Proof:
    tensor = TensorDigest(rows=2, columns=3, dtype="bfloat16", digest=f"{digest:016x}")
    return Proof(fingerprint=Fingerprint(tensors={TENSOR: tensor}), probe=probe)


def test_server_with_wrong_logprobs_is_detected(open_toys: OpenFleet, tokenizer, weights: MakeWeights):
    """A server that cannot show its weights, and reports the new version, but uses some old weights."""
    prompt = (5, 6)

    def proof(seed: int) -> Proof:
        said = toy_logprobs(seed, prompt[-1], len(tokenizer)).astype(np.float32)
        return proof_of(0, WeightProbe(prompt=prompt, logprobs=said, tolerance=1e-2))

    async def run():
        async with open_toys() as (fleet, _):
            await fleet.load_weights(weights(4), 1, proof(4))
            with pytest.raises(WeightMismatch, match="other weights than version 2: its log-probabilities"):
                await fleet.load_weights(weights(4), 2, proof(5))

    run_virtual(run())


def test_server_without_any_proof_is_refused(open_toys: OpenFleet, weights: MakeWeights):
    async def run():
        async with open_toys() as (fleet, _):
            with pytest.raises(WeightMismatch, match=rf"cannot prove .* version 1, in {TENSOR} \("):
                await fleet.load_weights(weights(4), 1, proof_of(0))

    run_virtual(run())


def test_mismatch_names_server_version_and_tensor(open_toys: OpenFleet, weights: MakeWeights):
    async def run():
        async with open_toys(servers=2) as (fleet, servers):
            for server in servers:
                server.has_plugin = True
            await fleet.load_weights(weights(1), 1, proof_of(1))
            servers[1].keeps_weights = True
            with pytest.raises(WeightMismatch) as error:
                await fleet.load_weights(weights(2), 2, proof_of(2))
            with pytest.raises(WeightMismatch):  # the other server's replies are not used either
                await fleet.generate(PROMPT, sampling(), session="s")
            return servers[1].url, str(error.value)

    url, message = run_virtual(run())
    assert f"{url} computes with other weights than version 2, in {TENSOR} (" in message
    assert "digest 0000000000000001 instead of 0000000000000002" in message


def test_server_without_the_plugin_is_warned_about_once(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights, caplog: pytest.LogCaptureFixture
):
    said = toy_logprobs(4, 6, len(tokenizer)).astype(np.float32)
    probe = WeightProbe(prompt=(5, 6), logprobs=said, tolerance=1e-2)

    async def run():
        async with open_toys() as (fleet, (server,)):
            await fleet.load_weights(weights(4), 1, proof_of(4, probe))
            await fleet.load_weights(weights(4), 2, proof_of(4, probe))
            return server.url, [path for path, _ in server.requests].count("/weights_checker")

    url, asked = run_virtual(run())
    (warning,) = [record.getMessage() for record in caplog.records if "show all its" in record.getMessage()]
    assert f"{TENSOR} ({url} has no plugin of Hone: start it with `hone engine serve`)" in warning
    assert asked == 1  # the answer is cached


def test_error_of_a_worker_is_no_proof(tokenizer):
    worker = {
        "tensors": {TENSOR: [[0, 0, 2, 3, "bfloat16", f"{4:016x}"]]},
        "error": "RuntimeError: no memory",
    }

    class Failing(Sglang):
        async def _digests(self, names: Sequence[str], adapter: str, *, timeout_s: float) -> list[Any]:
            return [worker]

    async def run():
        async with sglang_servers(tokenizer) as (server,), new_session() as session:
            client = Failing(Http(session, server.url))
            return await client.compare_weights(proof_of(4).fingerprint, timeout_s=5)

    found = run_virtual(run())
    assert (found.differing, found.unproven) == ((), [TENSOR])
    assert "RuntimeError: no memory" in found.reasons[0]


def test_weights_changed_by_another_client_are_never_used(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights
):
    async def run():
        async with open_toys() as (fleet, (server,)):
            await fleet.load_weights(weights(4), 1)
            server.seed, server.label = 9, "theirs"
            return await fleet.generate(PROMPT, sampling(), session="s"), server.label

    reply, label = run_virtual(run())
    assert label == "1"  # loaded again
    require_exact(PROMPT, reply, {1: 4}, len(tokenizer))


def test_servers_serve_only_with_equal_weights(tokenizer, weights: MakeWeights):
    async def run():
        async with sglang_servers(tokenizer, 2) as servers:
            servers[0].label = "3"
            async with fleet_over(servers, tokenizer) as fleet:
                with pytest.raises(EngineError, match="different weights"):
                    await fleet.generate(PROMPT, sampling(), session="s")
                await fleet.load_weights(weights(4), 4)
                return await fleet.generate(PROMPT, sampling(), session="s")

    assert set(run_virtual(run()).version.tolist()) == {4}


@pytest.mark.parametrize("in_flight", [False, True])
def test_tokens_match_their_version_under_random_faults(
    open_toys: OpenFleet, tokenizer, weights: MakeWeights, in_flight: bool
):
    """Run sixteen conversations and six updates with servers that fail and restart at random."""
    chance = random.Random(7)
    ended: list[asyncio.Queue[None]] = [
        asyncio.Queue(),
        asyncio.Queue(),
    ]  # finished replies, one queue per waiter
    updated = asyncio.Event()

    async def converse(fleet, name: int) -> list:
        replies = []
        for turn in range(5):
            if turn == 4:
                await updated.wait()  # or every reply could be there before the first update is
            wanted = Sampling(max_tokens=12, seed=turn, stop_token_ids=STOP)
            replies.append(([5 + name], await fleet.generate([5 + name], wanted, session=str(name))))
            for queue in ended:
                queue.put_nowait(None)
        return replies

    async def after(queue: asyncio.Queue[None], replies: int) -> None:
        for _ in range(replies):
            await queue.get()

    async def disturb(servers: list[SglangServer]) -> None:
        while True:
            server = chance.choice(servers)
            if chance.random() < 0.3:
                await server.restart()
            else:
                server.faults = [chance.choice([broken, cut])]
            await after(ended[0], 4)

    async def run():
        settings = {"partial": in_flight, "retries": 20}
        async with open_toys(servers=3, **settings) as (fleet, servers):
            # From here on the label identifies a restarted server.
            await fleet.load_weights(weights(1), 1)
            last_error = asyncio.create_task(disturb(servers))
            talking = asyncio.gather(*(converse(fleet, i) for i in range(16)))
            for version in range(2, 8):
                await after(ended[1], 10)
                await fleet.load_weights(weights(version), version)
                updated.set()
            said = await talking
            last_error.cancel()
            return [pair for replies in said for pair in replies], fleet.version

    replies, version = run_virtual(run())
    assert (len(replies), version) == (80, 7)
    seen: set[int] = set()
    for prompt, reply in replies:
        seen |= set(reply.version.tolist())
        assert np.all(np.diff(reply.version) >= 0)
        require_exact(prompt, reply, {v: v for v in range(1, 8)}, len(tokenizer))
        if not in_flight:
            assert len(set(reply.version.tolist())) == 1
    assert len(seen) > 1
