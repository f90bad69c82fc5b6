"""Peak memory of a training step on the CPU, beside the memory plan of the same settings.

Each case runs in a process of its own, which makes two optimiser steps of two samples. Measured is the
growth of its resident memory (VmHWM) over that of a process that has trained a tiny model, so libraries and
their workspaces do not count. Prints one line per case, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.parts.resident import environment, peak_growth
from hone.config.memory import StepSettings, step_memory
from hone.config.shapes import Shape, shape_of
from hone.train.settings import BatchSettings, LoraSettings, MemorySettings, OptimizerSettings, TrainSettings
from hone.types import Sample

MIB = 2**20
ROW = 1024  # tokens of a sample
ROWS = 2
LOGIT_TOKENS = 256  # fewer than a pass has trained tokens
TOLERANCE = 0.15


@dataclass(frozen=True)
class Size:
    name: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    inner: int


SIZES = {
    "5M": Size("5M", 4000, 256, 5, 4, 768),
    "50M": Size("50M", 16000, 512, 10, 8, 1536),
    "150M": Size("150M", 32000, 768, 14, 12, 2304),
}
TINY = Size("tiny", 512, 64, 2, 2, 128)


def config_of(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": 64,
        "max_position_embeddings": ROW,
        "tie_word_embeddings": True,
    }


def settings_of(case: dict[str, Any]) -> TrainSettings:
    return TrainSettings(
        batch=BatchSettings(micro_batch_tokens=ROW, logit_tokens=case["logit_tokens"]),
        memory=MemorySettings(activation_checkpointing=case["checkpointing"]),
        optimizer=OptimizerSettings(lr=1e-5),
        lora=LoraSettings() if case["lora"] else None,
    )


def predicted(case: dict[str, Any]) -> Any:
    settings = settings_of(case)
    shape: Shape = shape_of(config_of(SIZES[case["size"]]))
    step = StepSettings(
        learner=settings,
        passes=settings.batch,
        optimizer=settings.optimizer,
        dtype=case["dtype"],
        longest=ROW,
        gpu=False,
    )
    return step_memory(shape, step)


def make_samples(vocabulary: int) -> list[Sample]:
    """Samples of ROW tokens, a quarter of which was sampled."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    for i in range(ROWS):
        weight = (np.arange(ROW) % 64 < 16).astype(np.float32)
        weight[:64], weight[-1] = 0, 1
        samples.append(
            Sample(
                rollout_id=f"r{i}",
                group_id="g",
                tokens=rng.integers(0, vocabulary, ROW).astype(np.int32),
                weight=weight,
                advantage=weight * (-1) ** i,
                logprobs=(weight * -np.log(vocabulary)).astype(np.float32),
                version=np.where(weight > 0, 0, -1).astype(np.int32),
            )
        )
    return samples


def measure(case: dict[str, Any]) -> int:
    """Return the growth of this process's peak memory by training, in bytes."""
    train(case, TINY)
    return peak_growth(lambda: train(case, SIZES[case["size"]]))


def train(case: dict[str, Any], size: Size) -> None:
    """Make two optimiser steps in this process."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from hone.train.batches import TrainRow
    from hone.train.in_process import InProcessLearner
    from hone.train.lora import add_adapters
    from hone.train.loss import policy_objective

    torch.manual_seed(0)
    config = Qwen3Config(**config_of(size), attn_implementation="sdpa")
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, case["dtype"]))
    model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(previous)
    settings = settings_of(case)
    if settings.lora is not None:
        add_adapters(model, settings.lora)
    learner = InProcessLearner(
        model,
        objective=policy_objective(settings.loss, 1.0),
        optimizer=settings.optimizer,
        passes=settings.batch,
        settings=settings,
    )
    rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=None) for s in make_samples(size.vocab)]
    for _ in range(2):
        learner.forward_backward(rows)
        learner.optim_step(1e-5)
    learner.close()


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Measure a case in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--measure", json.dumps(case)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    measured = int(done.stdout.strip().splitlines()[-1])
    plan = predicted(case)
    parts = {
        name: getattr(plan, name)
        for name in ("weights", "masters", "moments", "gradients", "activations", "logits")
    }
    ratio = plan.total / measured
    print(
        f"{case['size']:>5} {case['dtype']:<9} {'checkpointing' if case['checkpointing'] else '-':<14}"
        f"{'lora' if case['lora'] else '-':<5} predicted {plan.total / MIB:8.1f} MiB  measured "
        f"{measured / MIB:8.1f} MiB  ratio {ratio:.3f}   "
        + " ".join(f"{name} {size / MIB:.1f}" for name, size in parts.items()),
        flush=True,
    )
    return {**case, "predicted_mib": plan.total / MIB, "measured_mib": measured / MIB, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--lora", action="store_true", help="adapters instead of full training")
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(json.loads(arguments.measure)))
        return
    cases = [
        {
            "size": size,
            "dtype": arguments.dtype,
            "checkpointing": checkpointing,
            "lora": arguments.lora,
            "logit_tokens": LOGIT_TOKENS,
        }
        for size in arguments.sizes
        for checkpointing in (False, True)
    ]
    results = [run_case(case) for case in cases]
    worst = max(abs(result["ratio"] - 1) for result in results)
    print(json.dumps({"benchmark": "memory", "worst": worst, "within": worst <= TOLERANCE, "cases": results}))


if __name__ == "__main__":
    main()
