"""A real engine server: how far its log-probabilities are from the trainer's, and what updates cost.

    python benchmarks/engine_servers.py [--kind vllm] [--versions 3] [--tokens 10000] [--python INTERPRETER]

For each weight version: the weights are published as a training publishes them, `--tokens` tokens are sampled
at temperature 1, and the model scores them again, a reply at a time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hone.config import RunSettings
from hone.launch.policy import Policy, load_policy, open_engine
from hone.launch.weights import publisher
from hone.policy.engine import Completion, Engine, Sampling
from hone.policy.settings import ModelSettings, ServerEngineSettings, TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.train.in_process import InProcessLearner
from hone.train.loss import CrossEntropy
from hone.train.settings import OptimizerSettings, PassSettings

TEXTS = [
    "Fix the bug in `total_price`: it returns the wrong value for an empty list.\n",
    "def count(items):\n    total = 0\n    for item in items:\n        total += item.price\n",
    "```bash\nsed -i '4s/total += /total -= /' shop.py && git diff\n```",
] * 3
REPLY = 200  # tokens of a reply, at most
CONCURRENT = 32


async def sample(engine: Engine, prompts: list[list[int]], seed: int) -> list[Completion]:
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(index: int, prompt: list[int]) -> Completion:
        async with gate:
            sampling = Sampling(max_tokens=REPLY, seed=seed + index)
            return await engine.generate(prompt, sampling, session=f"{seed}-{index}")

    return await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts)))


def gaps(policy: Policy, prompt: list[int], reply: Completion) -> np.ndarray:
    """[T] |log-probability of the server - of the model| per sampled token."""
    ids = torch.tensor([[*prompt, *reply.token_ids.tolist()]])
    with torch.inference_mode():
        logits = policy.model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        own = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return np.abs(own.numpy() - reply.logprobs)


def change(policy: Policy, version: int) -> None:
    """Another version of the weights, every tensor of it, as far from the last as many optimiser steps."""
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)


async def measure(run_dir: Path, options: argparse.Namespace) -> dict[str, Any]:
    shape = TinyModelSettings(initializer_range=0.05)
    model = make_tiny(TEXTS, run_dir / "model", shape)
    engine_settings = ServerEngineSettings(
        kind=options.kind, context_tokens=512, max_batch=CONCURRENT, python=options.python
    )
    settings = RunSettings(run_dir=run_dir, model=ModelSettings(path=model), engine=engine_settings)
    policy = load_policy(settings)
    chance = np.random.default_rng(0)
    prompts = [
        chance.integers(9, len(policy.tokenizer), int(chance.integers(8, 64))).tolist()
        for _ in range(-(-options.tokens // REPLY))
    ]
    result: dict[str, Any] = {
        "kind": options.kind,
        "logp_gap_max": {},
        "tokens": {},
        "publish_s": {},
        "tokens_per_s": {},
    }
    began = time.monotonic()
    async with open_engine(policy, settings) as engine:
        result["start_s"] = round(time.monotonic() - began, 1)
        learner = InProcessLearner(
            policy.model, objective=CrossEntropy(), optimizer=OptimizerSettings(), passes=PassSettings()
        )
        publish = publisher(engine, policy, learner, settings)
        for version in range(options.versions):
            if version:
                change(policy, version)
            began = time.monotonic()
            await publish(version)
            result["publish_s"][version] = round(time.monotonic() - began, 3)
            began = time.monotonic()
            replies = await sample(engine, prompts, 1000 * version)
            seconds = time.monotonic() - began
            assert all(set(reply.version.tolist()) == {version} for reply in replies)
            every = np.concatenate([gaps(policy, p, r) for p, r in zip(prompts, replies, strict=True)])
            result["logp_gap_max"][version] = float(every.max())
            result["tokens"][version] = len(every)
            result["tokens_per_s"][version] = round(len(every) / seconds)
            print(f"version {version}: {len(every)} tokens, gap {every.max():.2g}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--python", type=Path, default=None, help="interpreter that has the server's package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), options))))


if __name__ == "__main__":
    main()
