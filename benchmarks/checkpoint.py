"""Seconds that training stands still for a checkpoint that a thread writes, and for one that it waits for.

Weights, AdamW's state and the export for transformers of a random model in float32, to a local disk and with
fsync. Reports also how much slower an optimiser step is while the thread writes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from hone.train.checkpoint import TrainState
from hone.train.checkpoint_writer import CheckpointWriter
from hone.train.settings import BatchSettings, CheckpointSettings, OptimizerSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer


def make_trainer(layers: int) -> Trainer:
    """Return a trainer after one AdamW step, so that all state exists."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    )
    settings = TrainSettings(optimizer=OptimizerSettings(lr=1e-6), batch=BatchSettings())
    trainer = policy_trainer(Qwen3ForCausalLM(config), settings, temperature=1.0)
    update(trainer)
    return trainer


def update(trainer: Trainer) -> None:
    """Make one optimiser step with gradients equal to the weights: work that runs beside the write."""
    for master in trainer.learner.masters:  # type: ignore[attr-defined]
        master.grad = master.detach().clone()
    trainer.learner.optim_step(1e-6)


def measure(trainer: Trainer, folder: Path, repeats: int) -> dict[str, float]:
    """Return medians in seconds over `repeats` checkpoints, after one that is not counted."""
    backend = Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    writer = CheckpointWriter(folder, trainer, tokenizer, CheckpointSettings(keep=1))
    taken: dict[str, list[float]] = {}

    def note(name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        taken.setdefault(name, []).append(time.perf_counter() - started)

    def in_turn(step: int) -> None:
        writer.begin(TrainState(step=step))
        writer.wait()

    for step in range(repeats + 1):
        note("synchronous", lambda step=step: in_turn(2 * step))
        note("asynchronous", lambda step=step: writer.begin(TrainState(step=2 * step + 1)))
        while writer.is_writing:
            note("step_while_writing", lambda: update(trainer))
        writer.wait()
        note("step", lambda: update(trainer))
        if step == 0:
            taken.clear()
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16, help="of 3.1 million parameters each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    trainer = make_trainer(options.layers)
    parameters = sum(master.numel() for master in trainer.learner.masters)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(trainer, Path(folder), options.repeats)
        size = sum(file.stat().st_size for file in next(Path(folder).iterdir()).rglob("*"))
    print(f"{parameters:,} parameters, {size / 2**30:.2f} GiB per checkpoint, {options.threads} threads")
    for name, value in taken.items():
        print(f"  {name:20} {value:7.3f} s")
    print(
        json.dumps(
            {
                "name": "checkpoint",
                "metrics": {
                    "stall_s": round(taken["asynchronous"], 3),
                    "synchronous_stall_s": round(taken["synchronous"], 3),
                    "step_slowdown": round(taken["step_while_writing"] / taken["step"], 2),
                },
                "ratios": {"synchronous": round(taken["synchronous"] / taken["asynchronous"], 2)},
            }
        )
    )


if __name__ == "__main__":
    main()
