"""Tokens per second of one GRPO training step, beside TRL's GRPOTrainer on the same model and batch.

Both sides compute the clipped loss, its gradients and one AdamW step in fp32 on 64 ragged multi-turn samples,
about a quarter of whose tokens were sampled; tokens are counted without padding. TRL's batch is padded before
the clock starts, as its trainer pads it, and the quickest of several micro-batch sizes stands for it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from hone.train.settings import BatchSettings, LossSettings, OptimizerSettings, TrainSettings
from hone.train.trainer import policy_trainer
from hone.types import Sample

VOCABULARY = 600
TRL_ROWS = (4, 16, 64)  # its micro-batch sizes to choose from


def make_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


def make_samples(count: int) -> list[Sample]:
    """Conversations of 100 to 400 tokens: a prompt, then replies and longer observations in turn."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    for i in range(count):
        length = int(rng.integers(100, 401))
        weight = np.zeros(length, np.float32)
        at = int(rng.integers(40, 80))
        while at < length:
            reply = int(rng.integers(8, 24))
            weight[at : at + reply] = 1
            at += reply + int(rng.integers(20, 60))
        samples.append(
            Sample(
                rollout_id=f"r{i}",
                group_id=f"g{i // 8}",
                tokens=rng.integers(0, VOCABULARY, length).astype(np.int32),
                weight=weight,
                advantage=(weight * rng.choice([-1.0, 1.0])).astype(np.float32),
                logprobs=(weight * -np.log(VOCABULARY)).astype(np.float32),
                version=np.where(weight > 0, 0, -1).astype(np.int32),
            )
        )
    return samples


def hone_step(samples: Sequence[Sample], micro_batch_tokens: int) -> Callable[[], object]:
    settings = TrainSettings(
        loss=LossSettings(normalisation="trajectory"),
        optimizer=OptimizerSettings(lr=1e-5),
        batch=BatchSettings(micro_batch_tokens=micro_batch_tokens),
    )
    trainer = policy_trainer(make_model(), settings, temperature=1.0)
    return lambda: trainer.step(samples)


def trl_step(samples: Sequence[Sample], rows: int, out: Path) -> Callable[[], object]:
    """One optimiser step of TRL's loss, accumulated over micro-batches of `rows` samples."""
    model = make_model()
    words = Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0"))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(out),
            use_cpu=True,
            report_to=[],
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=400,
            loss_type="grpo",
        ),
        train_dataset=Dataset.from_list([{"prompt": "w0"}]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w0"),
    )
    model.train()
    batch = trl_batch(samples)
    pieces = [{k: v[i : i + rows] for k, v in batch.items()} for i in range(0, len(samples), rows)]
    trainer.current_gradient_accumulation_steps = len(pieces)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)

    def step() -> None:
        for piece in pieces:
            trainer._compute_loss(model, piece).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def trl_batch(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """TRL's layout: prompts padded on the left, completions on the right, observations masked."""
    starts = [int(np.flatnonzero(s.weight)[0]) for s in samples]
    prompt, width = max(starts), max(len(s.tokens) - at for s, at in zip(samples, starts, strict=True))
    names = (
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "tool_mask",
        "old_per_token_logps",
    )
    arrays: dict[str, Any] = {
        name: np.zeros((len(samples), prompt if name.startswith("prompt") else width)) for name in names
    }
    for row, (s, at) in enumerate(zip(samples, starts, strict=True)):
        end = len(s.tokens) - at
        arrays["prompt_ids"][row, prompt - at :] = s.tokens[:at]
        arrays["prompt_mask"][row, prompt - at :] = 1
        arrays["completion_ids"][row, :end] = s.tokens[at:]
        arrays["completion_mask"][row, :end] = 1
        arrays["tool_mask"][row, :end] = s.weight[at:]
        arrays["old_per_token_logps"][row, :end] = s.logprobs[at:]
    batch = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
    batch["old_per_token_logps"] = torch.from_numpy(arrays["old_per_token_logps"]).float()
    batch["advantages"] = torch.tensor([float(s.advantage.sum() / s.weight.sum()) for s in samples])
    return batch


def alternate(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side, measured in turn so that noise meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if repeat:  # the first warmed up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side")
    parser.add_argument("--samples", type=int, default=64, help="samples in the batch")
    parser.add_argument(
        "--micro-batch-tokens",
        type=int,
        nargs="+",
        default=[BatchSettings().micro_batch_tokens],
        help="token budgets of hone's forward passes; the first is the one reported",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.set_verbosity_error()
    samples = make_samples(options.samples)
    tokens = sum(len(s.tokens) for s in samples)
    sampled = sum(float(s.weight.sum()) for s in samples)
    print(
        f"{sum(p.numel() for p in make_model().parameters()):,} parameters; {len(samples)} samples, {tokens} "
        f"tokens, {100 * sampled / tokens:.0f} % sampled; {options.threads} threads"
    )
    ours = {f"hone, {n} tokens": hone_step(samples, n) for n in options.micro_batch_tokens}
    with tempfile.TemporaryDirectory() as out:
        theirs = {f"trl, {n} rows": trl_step(copy.deepcopy(samples), n, Path(out)) for n in TRL_ROWS}
        seconds = alternate(ours | theirs, options.repeats)
    rates = {name: tokens / taken for name, taken in seconds.items()}
    for name, rate in rates.items():
        print(f"  {name:20} {rate:8.0f} tokens/s")
    hone, trl = rates[next(iter(ours))], max(rates[name] for name in theirs)
    print(
        json.dumps(
            {
                "name": "trainer",
                "metrics": {"tokens_per_s": round(hone, 1)},
                "peers": {"trl": {"tokens_per_s": round(trl, 1)}},
                "ratios": {"trl": round(hone / trl, 3)},
            }
        )
    )


if __name__ == "__main__":
    main()
