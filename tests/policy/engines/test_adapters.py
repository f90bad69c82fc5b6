"""Real servers that are sent adapters alone, against the trainer's model with the same adapters.

SGLang's adapters are in pinned memory: without an accelerator, its interpreter needs a stand-in for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hone.policy.engine import EngineError, Sampling
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.managed_server import ManagedServer
from hone.policy.engines.open import CLIENTS, open_servers
from hone.policy.engines.replica import Proof
from hone.policy.model import load_model, load_tokenizer
from hone.policy.settings import ModelSettings, ServerEngineSettings
from hone.policy.tiny import make_tiny
from hone.train.lora import adapted_layers, add_adapters, publish_adapters
from hone.train.publish import folder_fingerprint
from hone.train.settings import LoraSettings
from tests.policy.conftest import SETTINGS, TEXTS
from tests.policy.engines.real import KINDS, PYTHON

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]
PROMPT = list(range(40, 60))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SETTINGS.model_copy(update={"head_dim": 32})  # the smallest size of vLLM's attention on a CPU
    return make_tiny(TEXTS, tmp_path_factory.mktemp("base") / "model", shape)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Literal["vllm", "sglang"]:
    return request.param


@pytest.fixture(scope="module")
def server(
    kind: Literal["vllm", "sglang"], base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    settings = ServerEngineSettings(
        kind=kind,
        context_tokens=256,
        threads=1,
        weight_sync="adapter",
        adapter_rank=4,
        python=PYTHON[kind],
        max_batch=8,
    )
    log = tmp_path_factory.mktemp("engine") / "server.log"
    managed = ManagedServer(kind, settings, ModelSettings(path=base), log)
    with asyncio.Runner() as runner:
        try:
            yield runner.run(managed.start())
        finally:
            runner.run(managed.stop())


def adapted(base: Path, seed: int, rank: int = 4) -> PreTrainedModel:
    model = load_model(base)
    add_adapters(model, LoraSettings(rank=rank, alpha=12))
    torch.manual_seed(seed)
    with torch.no_grad():
        for _, layer in adapted_layers(model):
            layer.lora_B["default"].weight.normal_(0, 0.2)
    return model


def worst(model: PreTrainedModel, reply) -> float:
    """The largest difference between the reply's log-probabilities and the model's own."""
    ids = torch.tensor([[*PROMPT, *reply.token_ids.tolist()]])
    with torch.inference_mode():
        every = torch.log_softmax(model(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    own = every.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
    return float(np.abs(own - reply.logprobs).max())


def test_replies_come_from_the_newest_adapters(
    kind: Literal["vllm", "sglang"], server: str, base: Path, tmp_path: Path
) -> None:
    settings = ServerEngineSettings(kind=kind, urls=(server,), context_tokens=256)
    sampling = Sampling(max_tokens=32, seed=3)

    async def job() -> None:
        tokenizer = load_tokenizer(base)
        async with open_servers(settings, ModelSettings(path=base), tokenizer, logs=tmp_path) as fleet:
            assert worst(load_model(base), await fleet.generate(PROMPT, sampling, session="s")) <= 1e-4
            for version in (1, 2, 3):
                model = adapted(base, version % 2)
                folder = tmp_path / f"v{version}"
                publish_adapters(model, folder, base=base)
                fingerprint = folder_fingerprint(folder)
                assert len(fingerprint.tensors) == 2 * len(list(adapted_layers(model)))
                proof = Proof(fingerprint=fingerprint)
                await fleet.load_weights(folder, version, proof)
                reply = await fleet.generate(PROMPT, sampling, session="s")
                assert set(reply.version) == {version}
                assert worst(model, reply) <= 1e-4
                assert worst(adapted(base, (version + 1) % 2), reply) > 1e-2
            async with new_session() as session:
                client = CLIENTS[kind](Http(session, server))
                await client.pause()
                await client.load_weights(tmp_path / "v3", "3", timeout_s=60)
                await client.resume()
                earlier = folder_fingerprint(tmp_path / "v2")
                found = await client.compare_weights(earlier, timeout_s=60)
            assert len(found.differing) == len(earlier.tensors) // 2  # every B; all share their A
            assert not found.unproven
            with pytest.raises(EngineError, match=r"other weights than version 4, in base_model\..*digest"):
                await fleet.load_weights(tmp_path / "v2", 4, proof)
            publish_adapters(adapted(base, 0, rank=64), tmp_path / "large", base=base)
            with pytest.raises(EngineError, match="rank"):
                await fleet.load_weights(tmp_path / "large", 5)

    asyncio.run(job())
