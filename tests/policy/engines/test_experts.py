"""Real servers that are sent the weights of a mixture of experts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from hone.policy.engine import Sampling
from hone.policy.engines.client import GenerateRequest, Http, new_session
from hone.policy.engines.managed_server import ManagedServer
from hone.policy.engines.open import CLIENTS
from hone.policy.model import load_model
from hone.policy.settings import ModelSettings, ServerEngineSettings
from hone.train.publish import folder_fingerprint
from tests.policy.conftest import SETTINGS, TEXTS, make_tokenizer
from tests.policy.engines.real import KINDS, PYTHON

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]
PROMPT = list(range(40, 60))


def make_folder(seed: int, folder: Path) -> Path:
    tokenizer = make_tokenizer(TEXTS, SETTINGS)
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,  # on a CPU vLLM cannot load weights again unless it is a multiple of 32
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def worst(folder: Path, reply) -> float:
    """The largest difference between the reply's log-probabilities and those of the model in `folder`."""
    ids = torch.tensor([[*PROMPT, *reply.token_ids.tolist()]])
    with torch.inference_mode():
        every = torch.log_softmax(load_model(folder)(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    own = every.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
    return float(np.abs(own - reply.logprobs).max())


@pytest.mark.parametrize("kind", KINDS)
def test_server_computes_with_published_experts_and_proves_them(
    kind: Literal["vllm", "sglang"], tmp_path: Path
) -> None:
    folders = [make_folder(seed, tmp_path / f"v{seed}") for seed in range(3)]
    settings = ServerEngineSettings(
        kind=kind, context_tokens=256, threads=1, python=PYTHON[kind], max_batch=8
    )
    server = ManagedServer(kind, settings, ModelSettings(path=folders[0]), tmp_path / "server.log")

    async def job() -> None:
        async with new_session() as session:
            client = CLIENTS[kind](Http(session, await server.start()))
            for version, folder in enumerate(folders):
                if version:
                    await client.pause()
                    await client.load_weights(folder, str(version), timeout_s=120)
                    await client.resume()
                request = GenerateRequest(prompt=PROMPT, sampling=Sampling(), limit=8, seed=version)
                reply = await client.generate(request, timeout_s=300)
                assert worst(folder, reply) <= 1e-4
                assert worst(folders[version - 1], reply) > 0.1
                published = folder_fingerprint(folder)
                assert (await client.compare_weights(published, timeout_s=120)).proven
                other = await client.compare_weights(folder_fingerprint(folders[version - 1]), timeout_s=120)
                assert not other.unproven
                experts = {name for name in published.tensors if ".experts." in name}
                assert len(experts) == 2 * 6 * 3
                assert experts <= set(other.differing)

    with asyncio.Runner() as runner:
        try:
            runner.run(job())
        finally:
            runner.run(server.stop())
