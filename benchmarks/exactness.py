"""Do engine and trainer agree? Every token that the starting weights sampled, scored by plain forward passes.

    python benchmarks/exactness.py [RUN]      # runs/quickstart unless named

Takes the rollouts of the first training step and of the evaluation before training: real conversations of
several turns in real sandboxes, batched with others, with cached keys and values. Each is scored again alone,
in one forward pass of plain transformers, without any of the trainer's or the engine's code. Also reports how
far the ratio of the first on-policy step was from 1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.train.metrics import read_metrics
from hone.types import TokenTree


def trees(run: Path) -> Iterator[TokenTree]:
    """What the starting weights sampled."""
    with Ledger.read(run) as ledger:
        first = [entry.directory for entry in ledger.entries(0) if entry.directory is not None]
    store = Store(run / "rollouts")
    yield from (store.load(name).tree for name in first)
    for folder in sorted((run / "eval").glob("before-*")):
        store = Store(folder / "rollouts")
        yield from (store.load(name).tree for name in store.names())


@torch.no_grad()
def gaps(model: torch.nn.Module, tree: TokenTree) -> Iterator[np.ndarray]:
    """|engine - plain forward| of each sampled node, [T] nats."""
    for leaf in tree.leaves():
        ids = torch.from_numpy(tree.tokens(leaf).astype(np.int64))[None]
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        position = 0
        for node in (tree.nodes[index] for index in tree.path(leaf)):
            end = position + len(node.tokens)
            if node.sampled:
                mine = logprobs[position - 1 : end - 1].gather(1, ids[0, position:end, None])[:, 0]
                yield np.abs(mine.numpy() - node.logprobs)
            position = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/quickstart"), help="a quickstart")
    run: Path = parser.parse_args().run
    model = AutoModelForCausalLM.from_pretrained(run / "start")
    found = [(tree, np.concatenate(list(gaps(model, tree)))) for tree in trees(run) if tree.sampled_tokens]
    every = np.concatenate([gap for _, gap in found])
    steps = [m for m in read_metrics(run) if m.get("optimizer_steps")]
    metrics = {
        "tokens": len(every),
        "rollouts": len(found),
        "turns": sum(node.sampled for tree, _ in found for node in tree.nodes),
        "logp_gap_max": float(every.max()),
        "logp_gap_mean": float(every.mean()),
        "first_ratio_max_deviation": float(np.expm1(steps[0]["logp_gap_max"])),
        "first_ratio_max_deviation_any_step": float(np.expm1(max(s["logp_gap_max"] for s in steps))),
    }
    for name, value in metrics.items():
        print(f"{name:36} {value:.3g}")
    print(json.dumps({"name": "exactness", "metrics": metrics, "peers": {}, "ratios": {}}))


if __name__ == "__main__":
    main()
