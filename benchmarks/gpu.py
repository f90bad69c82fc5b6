"""One GPU in ten minutes: training speed, memory and exactness of random models of real shapes.

    python benchmarks/gpu.py            Qwen3-0.6B and -4B shapes, all weights and LoRA, 16k and 64k tokens
    python benchmarks/gpu.py --toy      the same code on the CPU, at toy size

Each case trains one step on one conversation of the context's length, a quarter of whose tokens were sampled:
tokens/s, model FLOP/s utilisation (MFU: 6 operations per weight and token, 4 with adapters, and 12 per layer,
query width and visible pair; recomputation does not count) and the peak memory of the device. A group of 8
conversations that share their first half then trains with `train.tree` off and automatic. With vLLM installed
for the GPU (`--vllm`), the largest difference between its log-probabilities and the trainer's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from hone.config.shapes import KNOWN
from hone.train.settings import (
    BatchSettings,
    LoraSettings,
    LossSettings,
    MemorySettings,
    OptimizerSettings,
    TrainSettings,
)
from hone.train.trainer import Trainer, policy_trainer
from hone.types import Sample

SERVER_LIMIT_S = 240.0


SHAPES = {"0.6B": KNOWN["Qwen/Qwen3-0.6B"], "4B": KNOWN["Qwen/Qwen3-4B"]}
TOY: dict[str, Mapping[str, Any]] = {
    "toy": {
        **SHAPES["0.6B"],
        "vocab_size": 512,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
    }
}


def make_model(shape: Mapping[str, Any], device: str, context: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(**shape, max_position_embeddings=max(4096, context), attn_implementation="sdpa")
    with torch.device(device):
        model = Qwen3ForCausalLM(config)
    return model.to(torch.bfloat16 if device != "cpu" else torch.float32).eval()


def make_samples(vocabulary: int, length: int, count: int = 1, shared: int = 0) -> list[Sample]:
    """Conversations of `length` tokens whose first `shared` are the same; every fourth token was sampled."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, vocabulary, shared)
    weight = (np.arange(length) % 1024 >= 768).astype(np.float32)
    if length < 1024:
        weight = (np.arange(length) % 16 >= 12).astype(np.float32)
    weight[:shared] = 0
    return [
        Sample(
            rollout_id=f"r{i}",
            group_id="g",
            tokens=np.concatenate([prefix, rng.integers(0, vocabulary, length - shared)]).astype(np.int32),
            weight=weight,
            advantage=weight * (1.0 if i % 2 else -1.0),
            logprobs=(weight * -np.log(vocabulary)).astype(np.float32),
            version=np.where(weight > 0, 0, -1).astype(np.int32),
        )
        for i in range(count)
    ]


def make_trainer(model: PreTrainedModel, *, budget: int, lora: bool, tree: str = "auto") -> Trainer:
    settings = TrainSettings.model_validate(
        {
            "tree": tree,
            "lora": LoraSettings() if lora else None,
            "memory": MemorySettings(activation_checkpointing=True),
            "loss": LossSettings(),
            "optimizer": OptimizerSettings(lr=1e-6),
            "batch": BatchSettings(micro_batch_tokens=budget),
        }
    )
    return policy_trainer(model, settings, temperature=1.0)


def timed_step(trainer: Trainer, samples: list[Sample], device: str) -> tuple[float, dict[str, float]]:
    """Return seconds and metrics of the second of two steps; the first compiles and allocates."""
    trainer.step(samples)
    wait(device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    metrics = trainer.step(samples)
    wait(device)
    return time.perf_counter() - start, metrics


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def case(name: str, shape: Mapping[str, Any], context: int, lora: bool, device: str) -> dict[str, Any]:
    result: dict[str, Any] = {"shape": name, "context": context, "mode": "lora" if lora else "full"}
    try:
        model = make_model(shape, device, context)
        samples = make_samples(shape["vocab_size"], context)
        trainer = make_trainer(model, budget=context, lora=lora)
        seconds, metrics = timed_step(trainer, samples, device)
        result["tokens_per_s"] = round(context / seconds, 1)
        result["peak_memory_gib"] = round(metrics["peak_memory_gib"], 2)
        if "mfu" in metrics:  # the benchmark's seconds end with the device's last operation
            result["mfu"] = round(metrics["mfu"] * metrics["seconds"] / seconds, 4)
        trainer.learner.close()
    except torch.OutOfMemoryError as error:
        result["error"] = str(error).splitlines()[0]
    finally:
        if device != "cpu":
            torch.cuda.empty_cache()
    return result


def tree_case(name: str, shape: Mapping[str, Any], context: int, device: str) -> dict[str, Any]:
    samples = make_samples(shape["vocab_size"], context, count=8, shared=context // 2)
    rates: dict[str, float] = {}
    for tree in ("off", "auto"):
        trainer = make_trainer(make_model(shape, device, context), budget=4 * context, lora=False, tree=tree)
        seconds, metrics = timed_step(trainer, samples, device)
        rates[tree] = metrics["branch_tokens"] / seconds
        trainer.learner.close()
    return {"shape": name, "context": context, "tree_over_rows": round(rates["auto"] / rates["off"], 3)}


def vllm_gap(shape: Mapping[str, Any], context: int) -> float:
    """Return max |vLLM - trainer| over the log-probabilities of a random prompt of `context` tokens."""
    model = make_model(shape, "cuda", context)
    sample = make_samples(shape["vocab_size"], context)[0]
    trainer = make_trainer(model, budget=context, lora=False)
    ours = trainer.logprobs([sample])[0]
    trainer.learner.close()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del trainer, model
        torch.cuda.empty_cache()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder),
                *("--skip-tokenizer-init", "--port", str(port), "--gpu-memory-utilization", "0.5"),
                *("--max-model-len", str(context + 8), "--enforce-eager"),
            ],
            stdout=sys.stderr,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        try:
            reply = ask(f"http://127.0.0.1:{port}", folder, sample.tokens.tolist(), server)
        finally:
            server.terminate()
            server.wait(60)
    theirs = [0.0] + [
        entry[str(token)]["logprob"]
        for entry, token in zip(reply["prompt_logprobs"][1:], sample.tokens[1:].tolist(), strict=True)
    ]
    trained = sample.weight > 0
    return float(np.abs(np.array(theirs)[trained] - ours[trained]).max())


def ask(url: str, model: str, tokens: list[int], server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return vLLM's completion of one token with the prompt's log-probabilities, once it is ready."""
    body = {"model": model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
    deadline = time.monotonic() + SERVER_LIMIT_S
    while True:
        try:
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=SERVER_LIMIT_S) as answer:
                return json.load(answer)["choices"][0]
        except (ConnectionError, OSError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="toy size on the CPU")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--contexts", type=int, nargs="+", default=[16384, 65536], help="tokens")
    parser.add_argument("--vllm", action="store_true", help="compare with vLLM's log-probabilities")
    options = parser.parse_args()
    if not options.toy and not torch.cuda.is_available():
        parser.error("there is no CUDA device: pass --toy to run the same code on the CPU at toy size")
    device = "cpu" if options.toy else "cuda"
    shapes = TOY if options.toy else {name: SHAPES[name] for name in options.shapes}
    contexts = [128, 512] if options.toy else options.contexts
    gpu = "" if options.toy else torch.cuda.get_device_name()
    cases = []
    for name, shape in shapes.items():
        for context in contexts:
            for lora in (False, True):
                cases.append(case(name, shape, context, lora, device))
                print(cases[-1], flush=True)
    first = next(iter(shapes))
    trees = [tree_case(first, shapes[first], contexts[0], device)]
    print(trees[0], flush=True)
    gaps = {}
    if options.vllm:
        gaps = {first: vllm_gap(shapes[first], min(contexts[0], 4096))}
    print(
        json.dumps(
            {
                "name": "gpu",
                "device": gpu or "cpu, toy size",
                "metrics": {"cases": cases, "trees": trees, "vllm_logprob_gap": gaps},
            }
        )
    )


if __name__ == "__main__":
    main()
