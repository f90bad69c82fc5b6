"""Run one planned pass: forward, loss and backward, whatever its kind."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hone.train.attention import AttendFunction, attention_over
from hone.train.batches import MicroBatch
from hone.train.depth_first import depth_first
from hone.train.policy_model import PolicyModel
from hone.train.ulysses import UlyssesAttention, own_range, own_tokens
from hone.types import UNKNOWN_EXPERT

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# From log-probabilities [n] and the trained tokens that they belong to, to the sum of their losses.
PassLoss = Callable[[Tensor, MicroBatch], Tensor]


@dataclass(frozen=True, slots=True)
class PassResult:
    """The numbers of one pass; the tensors have no graph."""

    loss: float  # 0 without a loss
    logprobs: Tensor  # float32 [N]
    entropies: Tensor  # float32 [N]


def run_pass(policy: PolicyModel, batch: MicroBatch, loss: PassLoss | None) -> PassResult:
    """Compute a pass; with `loss`, add the gradient of its sum to the weights."""
    total = 0.0

    def add(logprobs: Tensor, part: MicroBatch) -> None:
        nonlocal total
        if loss is not None:
            value = loss(logprobs, part)
            total += float(value.detach())
            value.backward()

    def add_segment(index: Tensor, logprobs: Tensor) -> None:
        add(logprobs, batch.select(index))

    if batch.kind == "depth_first":
        backward = None if loss is None else add_segment
        routing = None if batch.routing is None else torch.from_numpy(batch.routing)
        logprobs, entropies = depth_first(
            policy, batch.forest, batch.predictors, batch.targets, backward, routing
        )
        return PassResult(total, logprobs, entropies)
    with torch.set_grad_enabled(loss is not None):
        logprobs, entropies, part = forward_pass(policy, batch)
        add(logprobs, part)
    return PassResult(total, logprobs.detach(), entropies)


def forward_pass(
    policy: PolicyModel, batch: MicroBatch, sequence: ProcessGroup | None = None
) -> tuple[Tensor, Tensor, MicroBatch]:
    """Run a pass that is not depth first; return log-probabilities [n], entropies [n] and their tokens.

    With `sequence`, the ranks of the group divide the tokens of the pass (see `hone.train.ulysses`), and each
    returns its own trained tokens; without, n is N.
    """
    device = batch.targets.device
    forest = batch.forest
    tokens, position_ids = torch.from_numpy(forest.tokens)[None], torch.from_numpy(forest.position_ids)[None]
    routing = None if batch.routing is None else torch.from_numpy(batch.routing)
    attend: AttendFunction = attention_over(forest, device)
    start = 0
    if sequence is not None:
        attend = UlyssesAttention(attend, len(forest.tokens), sequence)
        start, end = own_range(len(forest.tokens), sequence)
        tokens, position_ids = own_tokens(tokens, sequence), own_tokens(position_ids, sequence)
        routing = None if routing is None else own_tokens(routing[None], sequence, UNKNOWN_EXPERT)[0]
        own = np.flatnonzero((batch.predictors >= start) & (batch.predictors < end))
        batch = batch.select(torch.from_numpy(own).to(device))
    predictors = torch.from_numpy(batch.predictors - start).to(device)
    routing = None if routing is None else routing.to(device)
    logprobs, entropies = policy(
        tokens.to(device), position_ids.to(device), predictors, batch.targets, attend, routing
    )
    return logprobs, entropies, batch
