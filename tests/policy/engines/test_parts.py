"""Unit tests of routing, partial completions and settings."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hone.policy.engine import Finish, Sampling
from hone.policy.engines.balance import SLACK, choose, max_load
from hone.policy.engines.client import CompletionChunk, PartialCompletion, ServerUnavailable
from hone.policy.engines.vllm import parse_chunk
from hone.policy.settings import AnyEngineSettings

ENGINES: TypeAdapter[AnyEngineSettings] = TypeAdapter(AnyEngineSettings)
loads = st.dictionaries(st.integers(0, 20), st.integers(0, 200), min_size=1)


@given(loads, st.integers(0, 25))
def test_request_returns_to_its_server_unless_overloaded(given_loads: dict[int, int], home: int):
    chosen = choose(given_loads, home)
    if home in given_loads and given_loads[home] < max_load(sum(given_loads.values()), len(given_loads)):
        assert chosen == home
    else:
        assert given_loads[chosen] == min(given_loads.values())


@given(st.lists(st.integers(0, 40), max_size=200), st.integers(1, 6))
def test_no_server_exceeds_its_load_bound(sessions: list[int], count: int):
    """Even if every request stays for ever and few conversations ask for everything."""
    load, homes = dict.fromkeys(range(count), 0), {}
    for session in sessions:
        bound = max_load(sum(load.values()), len(load))
        server = homes[session] = choose(load, homes.get(session))
        load[server] += 1
        assert load[server] <= bound
    assert max(load.values()) <= max(SLACK, 1.5 * (len(sessions) + 1) / count + 1)


def part(tokens: list[int], end: Finish) -> CompletionChunk:
    ids = np.asarray(tokens, np.int32)
    return CompletionChunk(token_ids=ids, logprobs=-ids.astype(np.float32), labels=("x",) * len(ids), end=end)


@given(st.lists(st.lists(st.integers(10, 99), max_size=5), min_size=1, max_size=6), st.integers(0, 2**62))
def test_chunks_are_joined_in_order(cuts: list[list[int]], seed: int):
    total = sum(map(len, cuts))
    partial = PartialCompletion([1, 2], Sampling(seed=seed, stop_token_ids=(3,)), total + 1)
    seeds, so_far = [], []
    for version, tokens in enumerate(cuts):
        request = partial.next_request()
        assert list(request.prompt) == [1, 2, *so_far]
        assert request.limit == total + 1 - len(so_far)
        seeds.append(request.seed)
        partial.add(part(tokens, Finish.ABORT), np.full(len(tokens), version, np.int32))
        so_far += tokens
        assert partial.finish is None
    with pytest.raises(ValueError, match="incomplete"):
        partial.completion()
    partial.add(part([3], Finish.STOP), np.full(1, len(cuts), np.int32))
    reply = partial.completion()
    assert reply.token_ids.tolist() == [*so_far, 3]
    assert reply.logprobs.tolist() == [-float(token) for token in (*so_far, 3)]
    assert reply.version.tolist() == [v for v, tokens in enumerate([*cuts, [3]]) for _ in tokens]
    assert reply.finish is Finish.STOP
    assert seeds[0] == seed
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds if s is not None)


def npy(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def vllm_choice(tokens: list[int], version: int, experts: np.ndarray | None) -> dict[str, Any]:
    """A choice of vLLM's token route (0.32), with `--enable-return-routed-experts`."""
    return {
        "token_ids": tokens,
        "logprobs": {"content": [{"token_id": token, "logprob": -1.0} for token in tokens]},
        "weight_versions": [{"version": str(version), "start": 0, "end": len(tokens)}],
        "finish_reason": "abort",
        "routed_experts": None if experts is None else npy(experts),
    }


@pytest.mark.parametrize(("dtype", "top"), [(np.uint8, 127), (np.uint8, 255), (np.uint16, 300)])
def test_experts_of_a_reply_are_those_of_its_first_chunks(dtype: type, top: int):
    rng = np.random.default_rng(0)
    experts = [rng.integers(0, top, (n, 2, 3), dtype=dtype, endpoint=True) for n in (4, 6)]
    partial = PartialCompletion([1, 2], Sampling(), 5)
    for version, (tokens, found) in enumerate([([5, 6, 7], experts[0]), ([8, 9], experts[1])]):
        prompt = partial.next_request().prompt
        chunk = parse_chunk("url", vllm_choice(tokens, version, found), len(prompt))
        partial.add(chunk, np.full(len(tokens), version, np.int32))
    reply = partial.completion()
    assert reply.routing is not None
    assert reply.routing.tolist() == [*experts[0].tolist(), *experts[1][4:].tolist()]


def test_positions_without_experts_are_unknown():
    partial = PartialCompletion([1, 2], Sampling(), 3)
    for tokens, found in (([5], np.ones((2, 1, 1), np.uint8)), ([6, 7], None)):
        chunk = parse_chunk("url", vllm_choice(tokens, 0, found), len(partial.next_request().prompt))
        partial.add(chunk, np.zeros(len(tokens), np.int32))
    reply = partial.completion()
    assert reply.routing is not None
    assert reply.routing[:, 0, 0].tolist() == [1, 1, -1, -1]


@pytest.mark.parametrize("shape", [(3, 2, 3), (6, 3)])
def test_experts_that_do_not_fit_the_reply_are_an_error(shape: tuple[int, ...]):
    with pytest.raises(ServerUnavailable, match="for 4 positions"):
        parse_chunk("url", vllm_choice([5, 6], 0, np.zeros(shape, np.uint8)), 3)


@pytest.mark.parametrize(
    ("tokens", "finish"), [([5, 6, 7], Finish.LENGTH), ([5, 3], Finish.STOP), ([5, 6], None), ([], None)]
)
def test_chunk_aborted_at_its_end_is_complete(tokens: list[int], finish: Finish | None):
    partial = PartialCompletion([1], Sampling(stop_token_ids=(3,)), 3)
    partial.add(part(tokens, Finish.ABORT), np.zeros(len(tokens), np.int32))
    assert partial.finish is finish


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "local", "urls": ["http://x"]}, r"local\.urls\s+Extra inputs are not permitted"),
        ({"kind": "local", "weight_sync": "disk"}, r"local\.weight_sync\s"),
        ({"kind": "vllm", "prefill_tokens": 1}, r"vllm\.prefill_tokens\s"),
        (
            {"kind": "vllm", "urls": ["http://x"], "servers": 2},
            "servers has no effect on the engine vllm at urls",
        ),
        ({"kind": "vllm", "urls": ["http://x"], "max_batch": 2}, "max_batch has no effect"),
        ({"kind": "vllm", "api_key_env": "K"}, "api_key_env has no effect"),
        ({"kind": "sglang", "model_name": "m"}, r"sglang\.model_name\s"),
        (
            {"kind": "openai", "urls": ["http://x/v1"], "model_name": "m", "weight_sync": "nccl"},
            r"openai\.weight_sync\s",
        ),
        ({"kind": "openai", "model_name": "m"}, "needs one address in urls, and model_name"),
        ({"kind": "openai", "urls": ["http://x/v1"]}, "needs one address in urls, and model_name"),
    ],
)
def test_engine_setting_of_another_kind_is_refused(settings: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        ENGINES.validate_python(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "vllm", "servers": 2, "max_batch": 64, "threads": 1, "weight_sync": "nccl"},
        {"kind": "sglang", "urls": ["http://a", "http://b"], "api_key_env": "K"},
        {"kind": "openai", "urls": ["http://a/v1"], "model_name": "m", "retries": 0},
        {"kind": "local", "max_batch": 64, "cached_sessions": 4},
    ],
)
def test_engine_settings_round_trip(settings: dict[str, object]):
    made = ENGINES.validate_python(settings)
    assert ENGINES.validate_python(made.model_dump()) == made
    assert made.managed == (made.kind in ("vllm", "sglang") and not made.addresses)
