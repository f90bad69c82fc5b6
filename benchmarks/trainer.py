"""Speed and memory of GRPO training steps on the CPU: beside TRL's GRPOTrainer, and on two ranks beside one.

    python benchmarks/trainer.py [--parts trl memory ranks]

trl      Tokens per second of one step on 64 ragged multi-turn samples in 8 groups, about a quarter of whose
         tokens were sampled: the clipped loss, its gradients and one AdamW step in float32. Samples of a
         group start with the same prompt, as GRPO's do; `separate` gives each sample a prompt of its own.
         Tokens are counted without padding. TRL's batch is padded before the clock starts. The quickest of
         Hone's numbers of workers and of TRL's micro-batch sizes stands for each side.
memory   Growth of the peak of resident memory in one such step, each side in a process of its own, at about
         equal tokens per forward pass.
ranks    Speed of one step of a model of 50 million parameters on two ranks, beside one process; each process
         has one thread.

Sides take turns, so that noise meets all alike. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.memory import Size, config_of
from benchmarks.parts.resident import environment, peak_growth
from hone.train.batches import TrainRow
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner, LearnerSpec
from hone.train.loss import policy_objective
from hone.train.settings import (
    BatchSettings,
    LearnerSettings,
    LossSettings,
    OptimizerSettings,
    PassSettings,
    TrainSettings,
)
from hone.train.trainer import policy_trainer
from hone.types import Sample

VOCABULARY = 600
LR = 1e-5
TRL_ROWS = (4, 16, 64)  # its micro-batch sizes to choose from
GROUP = 8
PARTS = ("trl", "memory", "ranks")
RANKS_SIZE = Size("52M", vocab=16000, hidden=512, layers=14, heads=8, inner=1536)


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


def make_samples(
    count: int, *, vocabulary: int = VOCABULARY, lengths: tuple[int, int] = (100, 400), shared: bool = True
) -> list[Sample]:
    """Conversations of ragged lengths: a prompt, then replies and longer observations in turn.

    With `shared`, the samples of a group start with the same prompt.
    """
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    prompt = rng.integers(0, vocabulary, 0)
    for i in range(count):
        if i % GROUP == 0 or not shared:
            prompt = rng.integers(0, vocabulary, int(rng.integers(40, 80)))
        length = int(rng.integers(lengths[0], lengths[1] + 1))
        tokens = np.concatenate([prompt, rng.integers(0, vocabulary, length - len(prompt))])
        weight = np.zeros(length, np.float32)
        at = len(prompt)
        while at < length:
            reply = int(rng.integers(8, 24))
            weight[at : at + reply] = 1
            at += reply + int(rng.integers(20, 60))
        samples.append(
            Sample(
                rollout_id=f"r{i}",
                group_id=f"g{i // GROUP}",
                tokens=tokens.astype(np.int32),
                weight=weight,
                advantage=(weight * rng.choice([-1.0, 1.0])).astype(np.float32),
                logprobs=(weight * -np.log(vocabulary)).astype(np.float32),
                version=np.where(weight > 0, 0, -1).astype(np.int32),
            )
        )
    return samples


def hone_step(samples: Sequence[Sample], workers: int) -> Callable[[], object]:
    settings = TrainSettings(
        loss=LossSettings(normalisation="trajectory"),
        optimizer=OptimizerSettings(lr=LR),
        batch=BatchSettings(workers=workers),
    )
    trainer = policy_trainer(make_model(), settings, temperature=1.0)
    return lambda: trainer.step(samples)


def peer_step(samples: Sequence[Sample], rows: int, out: Path) -> Callable[[], object]:
    from benchmarks.peers.trl_trainer import trl_step  # imports TRL, which takes seconds and memory

    return trl_step(make_model(), samples, rows, LR, out)


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


def compare_with_trl(count: int, threads: int, repeats: int, *, shared: bool) -> tuple[float, float]:
    """Return tokens per second of Hone and of TRL."""
    samples = make_samples(count, shared=shared)
    tokens = sum(len(s.tokens) for s in samples)
    sampled = sum(float(s.weight.sum()) for s in samples)
    print(
        f"{sum(p.numel() for p in make_model().parameters()):,} parameters; {count} samples with "
        f"{'shared' if shared else 'separate'} prompts, {tokens} tokens, {100 * sampled / tokens:.0f} % "
        f"sampled; {threads} threads"
    )
    ours = {f"hone, {n} workers": hone_step(samples, n) for n in sorted({1, threads})}
    with tempfile.TemporaryDirectory() as out:
        theirs = {f"trl, {n} rows": peer_step(samples, n, Path(out)) for n in TRL_ROWS}
        rates = {name: tokens / taken for name, taken in alternate(ours | theirs, repeats).items()}
    for name, rate in rates.items():
        print(f"  {name:20} {rate:8.0f} tokens/s", flush=True)
    return max(rates[name] for name in ours), max(rates[name] for name in theirs)


def compare_memory(count: int) -> tuple[float, float]:
    """Return the growth of the peak memory of a step in MiB, of Hone with one worker and of TRL."""
    found: dict[str, float] = {}
    sides = ("hone 1", f"trl {TRL_ROWS[0]}", "hone 2")
    for side in sides:
        command = [sys.executable, __file__, "--memory-of", side, "--samples", str(count)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        found[side] = int(done.stdout.split()[-1]) / 2**20
        print(f"  {side:20} {found[side]:8.1f} MiB", flush=True)
    return found[sides[0]], found[sides[1]]


def measure_memory(side: str, count: int) -> int:
    """Return the bytes by which a step of `side` exceeds the memory before its model was made."""
    name, _, size = side.partition(" ")
    samples = make_samples(count)
    make: Callable[[Sequence[Sample], Path], Callable[[], object]]
    if name == "hone":
        make = lambda chosen, out: hone_step(chosen, int(size))  # noqa: E731
    else:
        make = lambda chosen, out: peer_step(chosen, int(size), out)  # noqa: E731
    with tempfile.TemporaryDirectory() as out:
        make(samples[:2], Path(out))()  # libraries and their workspaces do not count
        return peak_growth(lambda: make(samples, Path(out))())


def compare_ranks(repeats: int) -> float:
    """Return the speed of a step on two ranks relative to one process."""
    from hone.train.ranks.learner import RanksLearner

    size = RANKS_SIZE
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**config_of(size), attn_implementation="sdpa"))
    samples = make_samples(12, vocabulary=size.vocab, lengths=(350, 900))
    rows = [TrainRow(sample=s, scale=s.weight / 1000, old_logprobs=None) for s in samples]
    tokens = sum(row.length for row in rows)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; {tokens} tokens; 1 thread per process")
    objective = policy_objective(LossSettings(), 1.0)
    optimizer, passes = OptimizerSettings(lr=LR), PassSettings(micro_batch_tokens=4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        model.save_pretrained(path / "model")

        def step(learner: Learner) -> Callable[[], object]:
            def run() -> None:
                learner.forward_backward(rows)
                learner.optim_step(LR)

            return run

        learners: dict[str, Learner] = {
            "one process": InProcessLearner(model, objective=objective, optimizer=optimizer, passes=passes)
        }
        try:
            settings = LearnerSettings(learner="ranks", ranks=2)
            spec = LearnerSpec(
                model=path / "model",
                dtype="float32",
                objective=objective,
                optimizer=optimizer,
                passes=passes,
                settings=settings,
            )
            learners["2 ranks"] = RanksLearner(spec, logs=path)
            seconds = alternate({name: step(learner) for name, learner in learners.items()}, repeats)
        finally:
            for learner in learners.values():
                learner.close()
    for name, taken in seconds.items():
        print(f"  {name:20} {taken:8.2f} s   {tokens / taken:6.0f} tokens/s", flush=True)
    return seconds["one process"] / seconds["2 ranks"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2, help="threads of each side, beside TRL")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side")
    parser.add_argument("--samples", type=int, default=64, help="samples in the batch, beside TRL")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(measure_memory(options.memory_of, options.samples))
        return
    metrics: dict[str, float] = {}
    peers: dict[str, float] = {}
    ratios: dict[str, float] = {}
    if "trl" in options.parts:
        for name, shared in (("", True), ("_separate", False)):
            hone, trl = compare_with_trl(options.samples, options.threads, options.repeats, shared=shared)
            metrics[f"tokens_per_s{name}"], peers[f"tokens_per_s{name}"] = round(hone, 1), round(trl, 1)
            ratios[f"trl{name}"] = round(hone / trl, 3)
    if "memory" in options.parts:
        hone, trl = compare_memory(options.samples)
        metrics["peak_mib"], peers["peak_mib"] = round(hone, 1), round(trl, 1)
        ratios["trl_memory"] = round(trl / hone, 3)
    if "ranks" in options.parts:
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"  # of the ranks
        ratios["2_ranks"] = round(compare_ranks(options.repeats), 3)
    print(json.dumps({"name": "trainer", "metrics": metrics, "peers": {"trl": peers}, "ratios": ratios}))


if __name__ == "__main__":
    main()
