from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hone
from hone.policy.engine import Completion
from hone.policy.engines import replica
from hone.policy.engines.client import EngineClient, Http, new_session
from hone.policy.engines.fleet import Fleet, open_fleet
from hone.policy.engines.managed_server import ExternalServer
from hone.policy.engines.replica import FleetSpec
from hone.policy.engines.sglang import Sglang
from hone.policy.settings import ServerEngineSettings
from tests.policy.engines.sglang_server import SglangServer, sglang_servers, toy_logprobs, toy_weights

OpenFleet = Callable[..., AbstractAsyncContextManager[tuple[Fleet, list[SglangServer]]]]


@pytest.fixture(autouse=True)
def _watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "POLL_S", 0.05)


@asynccontextmanager
async def fleet_over(
    toys: Sequence[SglangServer],
    tokenizer: Any,
    client: Callable[[Http], EngineClient] = Sglang,
    partial: bool = False,
    **settings: Any,
) -> AsyncGenerator[Fleet]:
    """Open a fleet of running servers."""
    urls = tuple(toy.url for toy in toys)
    wanted = {"context_tokens": 100, "ready_timeout_s": 20.0, **settings}
    async with new_session() as session:
        spec = FleetSpec(
            processes=[ExternalServer(url) for url in urls],
            client=lambda url: client(Http(session, url)),
            tokenizer=tokenizer,
            vocabulary=len(tokenizer),
            settings=ServerEngineSettings(kind="sglang", urls=urls, **wanted),
            partial=partial,
        )
        async with open_fleet(spec) as fleet:
            yield fleet
    left = [task.get_coro() for task in asyncio.all_tasks()]
    package = str(Path(hone.__file__).parent)
    assert [coro for coro in left if coro.cr_code.co_filename.startswith(package)] == []  # type: ignore[union-attr]


@pytest.fixture
def open_toys(tokenizer) -> OpenFleet:
    """Return `open_toys(servers=2, **settings)`, which opens a fleet of fake servers."""

    @asynccontextmanager
    async def opened(servers: int = 1, **settings: Any) -> AsyncGenerator[tuple[Fleet, list[SglangServer]]]:
        async with (
            sglang_servers(tokenizer, servers) as toys,
            fleet_over(toys, tokenizer, **settings) as fleet,
        ):
            yield fleet, toys

    return opened


def require_exact(
    prompt: Sequence[int], reply: Completion, seeds: dict[int, int], vocabulary: int, temperature: float = 1.0
) -> None:
    """Assert that each logprob matches the weights of the token's version; `seeds` maps versions to seeds."""
    tokens = [*prompt, *reply.token_ids.tolist()]
    for at, (token, said, version) in enumerate(
        zip(reply.token_ids, reply.logprobs, reply.version, strict=True), start=len(prompt)
    ):
        expected = toy_logprobs(seeds[int(version)], tokens[at - 1], vocabulary, temperature)[token]
        assert np.isclose(said, expected, atol=1e-5), (at, version)


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[int], Path]:
    """Return `weights(7)`, which makes the folder of the toy's weights with seed 7."""

    def made(seed: int) -> Path:
        folder = tmp_path / f"weights-{seed}"
        return folder if folder.is_dir() else toy_weights(folder, seed)

    return made
