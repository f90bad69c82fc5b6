"""Tokens per second of forward and backward over samples that share prefixes, by kind of pass.

    python benchmarks/tree.py [--hidden 192] [--layers 3] [--seconds 120] [--runs DIR ...] [--rollouts 16]

The samples are those of rollouts that Hone's bash agent has recorded: by default of four runs that this
script records first, which share prefixes in different ways (`parts/record_runs.py`), or of the runs named by
`--runs`, in whole groups. Tokens per second count every token of every branch, also those that a prefix tree
computes once. `rows` pads samples of similar length as transformers does; `trl` is TRL's own packing (best
fit decreasing) run by transformers' SDPA with position ids. All kinds take the same budget of tokens per
pass. They take turns, at least twice and in both orders, and the quickest of each counts. The last line is
JSON.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportOptionalCall=false
from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from trl.data_utils import pack_dataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts.record_runs import CASES, record
from hone.rollout.store import Store
from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.passes import cost_model
from hone.train.policy_model import PolicyModel
from hone.train.run_pass import run_pass
from hone.train.samples import tree_samples
from hone.train.settings import Tree
from hone.types import TokenTree

VOCABULARY = 600
ROUNDS = 2  # at least, of every case
KINDS: tuple[Tree, ...] = ("off", "mask", "depth_first", "auto")
NAMES = {"off": "packed", "mask": "mask", "depth_first": "depth_first", "auto": "automatic"}


def recorded(run: Path, rollouts: int) -> list[TokenTree]:
    """Return the trees of whole groups of a run until there are at least `rollouts` of them."""
    store = Store(run / "rollouts")
    groups: dict[str, list[TokenTree]] = {}
    for name in store.names():
        trajectory = store.load(name)
        groups.setdefault(trajectory.group_id, []).append(trajectory.tree)
    trees: list[TokenTree] = []
    for group in groups.values():
        if len(trees) < rollouts:
            trees += group
    if not trees:
        raise SystemExit(f"{run} has no rollouts: name the directory of a run that has collected some")
    return trees


def rows_of(trees: Sequence[TokenTree]) -> list[TrainRow]:
    samples = [
        sample
        for i, tree in enumerate(trees)
        for sample in tree_samples(tree, rollout_id=f"r{i}", group_id="g", advantage=1.0)
    ]
    total = sum(float(sample.weight.sum()) for sample in samples)
    return [TrainRow(sample=s, scale=s.weight / np.float32(total), old_logprobs=None) for s in samples]


def loss_of(logprobs: Tensor, batch: MicroBatch) -> Tensor:
    return -(logprobs * batch.scale).sum()


def planned(
    policy: PolicyModel, rows: Sequence[TrainRow], tree: Tree, budget: int
) -> tuple[Callable[[], float], list[MicroBatch]]:
    """Return a run of all passes, planning included, and the plan."""

    def plan() -> list[MicroBatch]:
        return micro_batches(
            rows,
            tree=tree,
            budget_tokens=budget,
            cost=cost_model(policy.model.config),
            device=torch.device("cpu"),
        )

    return lambda: sum(run_pass(policy, batch, loss_of).loss for batch in plan()), plan()


def plain_pass(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, at: Tensor, row_scale: Tensor
) -> float:
    """Backpropagate the loss of the tokens at flat indices `at` of ids [B, L]; return it."""
    hidden = model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden.flatten(0, 1)[at - 1]).float()
    loss = (torch.nn.functional.cross_entropy(logits, ids.flatten()[at], reduction="none") * row_scale).sum()
    loss.backward()
    return float(loss.detach())


def padded(model: PreTrainedModel, rows: Sequence[TrainRow], budget: int) -> Callable[[], float]:
    """Rows of similar length side by side, padded to the longest."""
    groups: list[list[TrainRow]] = []
    for row in sorted(rows, key=lambda row: -row.length):
        if groups and (len(groups[-1]) + 1) * groups[-1][0].length <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])

    def run() -> float:
        total = 0.0
        for group in groups:
            width = group[0].length
            ids = torch.zeros(len(group), width, dtype=torch.long)
            for at, row in enumerate(group):
                ids[at, : row.length] = torch.from_numpy(row.sample.tokens[: row.length].astype(np.int64))
            flat = np.concatenate([at * width + row.trained for at, row in enumerate(group)])
            scale = np.concatenate([row.scale[row.trained] for row in group])
            positions = torch.arange(width).expand(len(group), -1)
            total += plain_pass(model, ids, positions, torch.from_numpy(flat), torch.from_numpy(scale))
        return total

    return run


def trl_packed(model: PreTrainedModel, rows: Sequence[TrainRow], budget: int) -> Callable[[], float]:
    """TRL's packing; rows longer than the budget would be cut, so it takes at least the longest."""
    columns = {
        "input_ids": [row.sample.tokens[: row.length].tolist() for row in rows],
        "scale": [row.scale[: row.length].tolist() for row in rows],
    }
    longest = max(row.length for row in rows)
    packed = pack_dataset(Dataset.from_dict(columns), max(budget, longest), strategy="bfd")

    def run() -> float:
        total = 0.0
        for pack in packed:
            lengths = pack["seq_lengths"]
            positions = torch.cat([torch.arange(length) for length in lengths])[None]
            scale = torch.tensor(pack["scale"])
            at = scale.nonzero()[:, 0]
            total += plain_pass(model, torch.tensor(pack["input_ids"])[None], positions, at, scale[at])
        return total

    return run


def measure(
    model: PreTrainedModel, rows: Sequence[TrainRow], budget: int, least_s: float
) -> dict[str, object]:
    plain = copy.deepcopy(model)
    policy = PolicyModel(copy.deepcopy(model), temperature=1.0, logit_tokens=4096)
    runs: dict[str, Callable[[], float]] = {
        "rows": padded(plain, rows, budget),
        "trl": trl_packed(plain, rows, budget),
    }
    passes: dict[str, int] = {}
    unique = 0
    for kind in KINDS:
        runs[NAMES[kind]], plan = planned(policy, rows, kind, budget)
        if kind == "auto":
            unique = sum(len(batch.forest.tokens) for batch in plan)
            for batch in plan:
                passes[batch.kind] = passes.get(batch.kind, 0) + 1
    losses: dict[str, float] = {}
    seconds = {name: float("inf") for name in runs}
    order, measured, begun = list(runs), 0, time.perf_counter()
    while measured < ROUNDS or time.perf_counter() - begun < least_s:
        for name in order:
            started = time.process_time()
            losses[name] = runs[name]()
            seconds[name] = min(seconds[name], time.process_time() - started)
        order.reverse()
        measured += 1
    assert max(losses.values()) - min(losses.values()) < 1e-4 * abs(losses["rows"]), losses
    branch = sum(row.length for row in rows)
    return {
        "branch_tokens": branch,
        "unique_tokens": unique,
        "ratio": round(branch / unique, 2),
        "passes": passes,
        "tokens_per_s": {name: round(branch / s) for name, s in seconds.items()},
        "automatic_over_best": round(min(seconds.values()) / seconds["automatic"], 3),
        "automatic_over_rows": round(seconds["rows"] / seconds["automatic"], 2),
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a pass")
    parser.add_argument("--seconds", type=float, default=120, help="least time of a case")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="recorded runs to take samples from")
    parser.add_argument("--rollouts", type=int, default=16, help="of each recorded run, in whole groups")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        runs: list[Path] = options.runs or [record(Path(folder), case) for case in CASES]
        cases = {run.name: rows_of(recorded(run, options.rollouts)) for run in runs}
    largest = max(int(row.sample.tokens.max()) for rows in cases.values() for row in rows)
    config = Qwen3Config(
        vocab_size=max(VOCABULARY, largest + 1),
        hidden_size=options.hidden,
        intermediate_size=8 * options.hidden // 3,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=options.hidden // 64,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config).eval()
    results: dict[str, object] = {}
    for name, rows in cases.items():
        results[name] = found = measure(model, rows, options.budget, options.seconds)
        print(name, json.dumps(found), flush=True)
    print(json.dumps({"benchmark": "tree", "hidden": options.hidden, "layers": options.layers, **results}))


if __name__ == "__main__":
    main()
