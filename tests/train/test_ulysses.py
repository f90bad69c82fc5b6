"""Sequence parallelism on two ranks gives the numbers of one process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from hone.train.attention import attention_over
from hone.train.batches import MicroBatch
from hone.train.errors import TrainError
from hone.train.forest import Branch, build_forest
from hone.train.policy_model import PolicyModel
from hone.train.run_pass import forward_pass
from hone.train.ulysses import UlyssesAttention, own_range, own_tokens
from hone.types import UNKNOWN_EXPERT
from tests.train.architectures import architecture, tree_branches
from tests.train.test_policy_model import CPU, arrays, assert_equal, coefficients, gradients, plain

NAMES = ("qwen3", "qwen3_moe", "sliding", "one_kv_head")


def branches_with_padding() -> list[Branch]:
    """An odd number of tokens, shared or not, so that the second rank has one of padding."""
    short = Branch(np.arange(5, dtype=np.int32), np.array([2, 4]))
    branches = [*tree_branches(), short]
    for share in (False, True):
        assert len(build_forest(branches, share=share).tokens) % 2 == 1
    return branches


def rank(number: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=number, world_size=2, timeout=timedelta(seconds=60))
    assert dist.group.WORLD is not None
    results = {
        f"{name} {share}": pass_of(name, share, dist.group.WORLD) for name in NAMES for share in (0, 1)
    }
    if number == 0:
        torch.save(results, folder / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


def pass_of(name: str, share: int, group: dist.ProcessGroup) -> tuple[Any, ...]:
    policy = PolicyModel(architecture(name), temperature=0.8, logit_tokens=7)
    branches = branches_with_padding()
    forest = build_forest(branches, share=bool(share))
    tokens, position_ids, predictors, targets = arrays(forest, branches)
    attend = UlyssesAttention(attention_over(forest, CPU), len(forest.tokens), group)
    start, end = own_range(len(forest.tokens), group)
    own = torch.from_numpy(np.flatnonzero((predictors >= start) & (predictors < end)))
    logprobs, entropies = policy(
        own_tokens(tokens, group),
        own_tokens(position_ids, group),
        predictors[own] - start,
        targets[own],
        attend,
    )
    (logprobs * coefficients(len(targets))[own]).sum().backward()
    every = [torch.zeros(len(targets)).index_copy(0, own, x.detach()) for x in (logprobs, entropies)]
    grads = gradients(policy.model)
    for tensor in (*every, *grads):
        dist.all_reduce(tensor, group=group)
    return (*every, grads)


@pytest.mark.full
def test_two_ranks_of_a_sequence_equal_one_process(tmp_path: Path) -> None:
    multiprocessing.spawn(rank, args=(tmp_path,), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    for name in NAMES:
        expected = plain(architecture(name), branches_with_padding(), 0.8)
        for share in (0, 1):
            assert_equal(results[f"{name} {share}"], expected)


def test_ranks_that_cannot_divide_the_heads_are_refused() -> None:
    class Three:
        def size(self) -> int:
            return 3

    query, key = torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 2, 8)
    group: Any = Three()
    attend = UlyssesAttention(lambda *_, **__: query, 6, group)
    with pytest.raises(TrainError, match="does not divide 4 query, 2 key heads"):
        attend(query, key, key, scale=1, window=None, layer=0)


def test_rank_of_a_sequence_computes_its_own_tokens_with_their_experts() -> None:
    class Second:
        """The second of two ranks."""

        def size(self) -> int:
            return 2

        def rank(self) -> int:
            return 1

    def policy(*arguments: Any) -> tuple[Tensor, Tensor]:
        tokens, position_ids, predictors, targets, _, routing = arguments
        assert (tokens.tolist(), position_ids.tolist()) == ([[13, 14, 0]], [[3, 4, 0]])
        assert (predictors.tolist(), targets.tolist()) == ([0], [14])
        assert routing.tolist() == [[[6], [7]], [[8], [9]], [[UNKNOWN_EXPERT], [UNKNOWN_EXPERT]]]
        return torch.ones(1), torch.zeros(1)

    forest = build_forest([Branch(np.arange(10, 15, dtype=np.int32), np.array([2, 4]))], share=True)
    batch = MicroBatch(
        rows=[0],
        trained=[2],
        forest=forest,
        kind="mask",
        cost=1.0,
        predictors=np.concatenate(forest.predictors),
        targets=torch.tensor([12, 14]),
        scale=torch.ones(2),
        advantages=torch.ones(2),
        engine_logprobs=torch.zeros(2),
        old_logprobs=None,
        reference=None,
        routing=np.arange(10, dtype=np.int8).reshape(5, 2, 1),
    )
    runs: Any = policy
    second: Any = Second()
    logprobs, _, own = forward_pass(runs, batch, second)
    assert (logprobs.tolist(), own.targets.tolist()) == ([1.0], [14])
