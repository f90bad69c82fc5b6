"""SGLang's wire format: the fake server against recorded replies, the client against both."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from hone.policy.engine import Finish
from hone.policy.engines.client import Http, Refused, ServerUnavailable, new_session
from hone.policy.engines.fingerprint import Fingerprint, TensorDigest
from hone.policy.engines.sglang import DIGESTS, Sglang, parse_chunk
from tests.policy.engines.sglang_server import sglang_servers, toy_weights

RECORDED = (
    Path(__file__).parent / "sglang_replies"
)  # of SGLang 0.5.15.post1 on a CPU; the model's path is MODEL


def reply(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text())


def shape(value: Any) -> Any:
    """Return names and types without values; for a list, the shape of its first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


async def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


@pytest.mark.parametrize("name", ["generate", "generate_after_update"])
def test_fake_reply_has_the_fields_of_a_real_one(tokenizer, name: str):
    real = reply(name)

    async def run() -> tuple[int, Any]:
        async with sglang_servers(tokenizer) as (server,):
            return await ask(server.url, "POST", "/generate", real["request"])

    status, body = asyncio.run(run())
    assert status == real["status"]
    assert shape(body) == shape(real["body"])
    assert len(body["output_ids"]) == len(real["body"]["output_ids"])


def test_fake_aborted_reply_has_the_fields_of_a_real_one(tokenizer):
    real = reply("generate_aborted")

    async def run() -> tuple[Any, Any]:
        async with sglang_servers(tokenizer) as (server,):
            server.hold = asyncio.Event()
            body = {**reply("generate")["request"]}
            body["sampling_params"] = {**body["sampling_params"], "stop_token_ids": [10**6]}
            generated = asyncio.create_task(ask(server.url, "POST", "/generate", body))
            await server.holding.wait()
            aborted = await ask(server.url, "POST", "/abort_request", reply("abort_request")["request"])
            return aborted, await generated

    aborted, (status, body) = asyncio.run(run())
    assert aborted == (reply("abort_request")["status"], reply("abort_request")["body"])
    assert status == real["status"]
    differs = {"cached_tokens_details"}  # null where nothing was cached
    ours, theirs = shape(body), shape(real["body"])
    assert ours["meta_info"].keys() == theirs["meta_info"].keys()
    assert {k: v for k, v in ours["meta_info"].items() if k not in differs} == {
        k: v for k, v in theirs["meta_info"].items() if k not in differs
    }
    assert len(body["output_ids"]) == body["meta_info"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("model_info", "GET", "/model_info"),
        ("health_generate", "GET", "/health_generate"),
        ("flush_cache", "GET", "/flush_cache"),
        ("get_weight_version", "GET", "/get_weight_version"),
        ("update_weights_from_disk_bad", "POST", "/update_weights_from_disk"),
    ],
)
def test_fake_routes_answer_like_a_real_server(tokenizer, name: str, method: str, path: str):
    real = reply(name)

    async def run() -> tuple[int, Any]:
        async with sglang_servers(tokenizer) as (server,):
            return await ask(server.url, method, path, real["request"])

    status, body = asyncio.run(run())
    assert (status, shape(body)) == (real["status"], shape(real["body"]))


def test_fields_of_long_fake_answers_exist_in_real_ones(tokenizer):
    async def run() -> tuple[Any, Any]:
        async with sglang_servers(tokenizer) as (server,):
            return await ask(server.url, "GET", "/server_info"), await ask(server.url, "GET", "/v1/loads")

    (_, info), (_, loads) = asyncio.run(run())
    for ours, theirs in ((info, reply("server_info")["body"]), (loads, reply("loads")["body"])):
        inner = "internal_states" if "internal_states" in ours else "loads"
        assert shape(ours[inner][0]).items() <= shape(theirs[inner][0]).items()
        assert {k: v for k, v in shape(ours).items() if k != inner}.items() <= shape(theirs).items()


def test_fake_weight_update_answers_like_a_real_one(tokenizer, tmp_path: Path):
    real = reply("update_weights_from_disk")
    weights = toy_weights(tmp_path / "v3", 3)

    async def run() -> tuple[int, Any]:
        async with sglang_servers(tokenizer) as (server,):
            body = {**real["request"], "model_path": str(weights)}
            return await ask(server.url, "POST", "/update_weights_from_disk", body)

    assert asyncio.run(run()) == (real["status"], real["body"])


@pytest.mark.parametrize("name", ["weights_checker", "weights_checker_unknown_action"])
def test_fake_proof_of_weights_has_the_fields_of_a_real_one(tokenizer, name: str):
    real = reply(name)

    async def run() -> tuple[int, Any]:
        async with sglang_servers(tokenizer) as (server,):
            server.has_plugin = name == "weights_checker"
            return await ask(server.url, "POST", "/weights_checker", real["request"])

    status, body = asyncio.run(run())
    assert (status, shape(body)) == (real["status"], shape(real["body"]))
    if not body["success"]:
        assert body == real["body"]


def test_new_adapters_replace_those_before(tokenizer, tmp_path: Path):
    def folder(name: str, rank: int) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps({"r": rank}))
        return path

    async def run() -> None:
        async with sglang_servers(tokenizer) as (server,), new_session() as session:
            server.adapters["of others"] = tmp_path
            client = Sglang(Http(session, server.url))
            await client.top_logprobs([5], temperature=1.0)
            assert "lora_path" not in server.requests[-1][1]
            for version in ("1", "2"):
                await client.load_weights(folder(version, rank=4), version, timeout_s=5)
                loaded = {name: path for name, path in server.adapters.items() if name != "of others"}
                assert list(loaded.values()) == [tmp_path / version]
                await client.top_logprobs([5], temperature=1.0)
                assert [server.requests[-1][1]["lora_path"]] == list(loaded)
                assert (await client.server_info()).label == version
            server.has_plugin = True
            held = TensorDigest(rows=4, columns=3, dtype="bfloat16", digest="0" * 16)
            await client.compare_weights(Fingerprint(tensors={"q.lora_A.weight": held}), timeout_s=5)
            (used, body), (path, asked) = server.requests[-2:]
            assert (used, path) == ("/generate", "/weights_checker")  # they are held once a request uses them
            (name,) = loaded
            assert body["lora_path"] == name
            assert json.loads(asked["action"].removeprefix(DIGESTS))["adapter"] == name
            assert "of others" in server.adapters
            with pytest.raises(Refused, match=r"max_lora_rank 16.*--adapter-rank RANK"):
                await client.load_weights(folder("large", rank=32), "3", timeout_s=5)

    asyncio.run(run())


def test_client_parses_a_real_reply():
    part = parse_chunk("url", reply("generate_after_update")["body"])
    assert part.token_ids.tolist() == [815, 695, 1152, 1731]
    assert part.logprobs.dtype == np.float32
    assert part.logprobs[0] == np.float32(-7.100216865539551)
    assert (part.labels, part.end) == (("3",) * 4, Finish.LENGTH)
    cut = parse_chunk("url", reply("generate_aborted")["body"])
    assert (len(cut.token_ids), len(cut.logprobs), len(cut.labels), cut.end) == (
        125,
        125,
        125,
        Finish.ABORT,
    )


def test_client_recognises_a_real_overflow_error():
    message = reply("generate_too_long")["body"]["error"]["message"]
    assert Sglang.is_overflow(message)


@pytest.mark.parametrize("damage", ["short", "other"])
def test_mismatched_ids_and_logprobs_are_refused(damage: str):
    entries = [[-1.0, 5, None], [-2.0, 6, None]]
    body = {
        "output_ids": [5, 6],
        "meta_info": {
            "weight_version": "1",
            "finish_reason": {"type": "length", "length": 2},
            "output_token_logprobs": entries[:1] if damage == "short" else [entries[0], [-2.0, 7, None]],
        },
    }
    with pytest.raises(ServerUnavailable, match="do not match"):
        parse_chunk("url", body)
