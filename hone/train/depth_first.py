"""Forward and backward over a forest, segment by segment with saved keys and values.

Only the path from the root to the current segment is in memory. The backward pass of a segment runs after
those of its children, which add to the gradients of its keys and values; so the numbers are those of one pass
over the whole forest.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hone.train.block_attention import BlockAttend, path_blocks
from hone.train.forest import Forest, Int64
from hone.train.policy_model import PolicyModel

# Backpropagates the loss of some targets: their indices, int64 [n], and their log-probabilities [n].
SegmentBackward = Callable[[Tensor, Tensor], None]


@dataclass(slots=True)
class _Layer:
    """Keys and values of the tokens of the current path, and their gradients from the segments below."""

    key: Tensor  # [1, H_kv, longest path, D]
    value: Tensor
    key_grad: Tensor  # float32
    value_grad: Tensor


class PathAttention:
    """Attention of the tokens of one segment to their path, for tensors on the CPU.

    The keys and values of the segment go into the store at its place on the path; those before it are the
    segment's ancestors. The backward pass adds the gradients of the ancestors' keys and values to the store
    and takes those of the segment's own from it, so it must run after that of the segments below.
    """

    def __init__(self, longest_path: int) -> None:
        self.start, self.end = 0, 0
        self._positions = torch.arange(longest_path)
        self._layers: dict[int, _Layer] = {}

    def at(self, start: int, end: int) -> PathAttention:
        """Return the attention of the segment of the tokens [start, end) of a path, with the same store."""
        segment = copy.copy(self)
        segment.start, segment.end = start, end
        return segment

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """See `AttendFunction`."""
        if layer not in self._layers:
            shape = (1, key.shape[1], len(self._positions), key.shape[3])
            saved = [torch.zeros(shape, dtype=key.dtype) for _ in range(2)]
            self._layers[layer] = _Layer(*saved, *(torch.zeros(shape) for _ in range(2)))
        blocks = path_blocks(self.start, self.end, window)
        attend = BlockAttend(blocks, self._positions, window, scale, first_query=self.start)
        return _PathAttention.apply(query, key, value, self._layers[layer], attend)  # pyright: ignore[reportReturnType]


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layer: _Layer, attend: BlockAttend
    ) -> Tensor:
        own = slice(attend.first_query, attend.first_query + query.shape[2])
        layer.key[:, :, own], layer.value[:, :, own] = key, value
        out, lse = attend.forward(query, layer.key, layer.value)
        ctx.save_for_backward(query, out, lse)
        ctx.own, ctx.layer, ctx.attend = own, layer, attend
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, out, lse = ctx.saved_tensors
        layer: _Layer = ctx.layer
        query_grad = torch.zeros_like(query, dtype=torch.float32)
        sums = (query_grad, layer.key_grad, layer.value_grad)
        ctx.attend.backward(grads[0], (query, layer.key, layer.value), out, lse, sums)
        own = [total[:, :, ctx.own].to(query.dtype, copy=True) for total in sums[1:]]
        for total in sums[1:]:
            total[:, :, ctx.own] = 0  # for the next segment at this place of the path
        return (query_grad.to(query.dtype), *own, None, None)


@dataclass(slots=True)
class _Open:
    """A segment whose children are not finished."""

    segment: int
    hidden: Tensor  # [T, C], with the graph of the segment
    grad: Tensor  # [T, C], of the losses of the segment's own targets


def depth_first(
    policy: PolicyModel,
    forest: Forest,
    predictors: Int64,
    targets: Tensor,
    backward: SegmentBackward | None,
    routing: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of `targets` and the entropies, float32 [N] each, without a graph.

    With `backward`, also add the gradient of all losses to the weights. `predictors` is int64 [N] and
    `routing` [U, layers, k] (see `PolicyModel`). The model is on the CPU.
    """
    order = np.argsort(predictors, kind="stable")
    bounds = np.searchsorted(predictors[order], np.append(forest.starts, len(forest.tokens)))
    path = PathAttention(forest.longest_path)
    logprobs, entropies = torch.zeros(len(targets)), torch.zeros(len(targets))
    tokens, position_ids = torch.from_numpy(forest.tokens)[None], torch.from_numpy(forest.position_ids)[None]
    opened: list[_Open] = []
    for segment, parent in enumerate(forest.parents.tolist()):
        while opened and opened[-1].segment != parent:
            _close(opened.pop())
        start, end = int(forest.starts[segment]), int(forest.ends[segment])
        attend = path.at(int(forest.position_ids[start]), int(forest.position_ids[end - 1]) + 1)
        index = torch.from_numpy(order[bounds[segment] : bounds[segment + 1]])
        at = torch.from_numpy(predictors)[index] - start
        with torch.set_grad_enabled(backward is not None):
            experts = None if routing is None else routing[start:end]
            hidden = policy.decode(tokens[:, start:end], position_ids[:, start:end], attend, experts)
            leaf = hidden.detach().requires_grad_(backward is not None)
            if len(index):
                scored, entropies[index] = policy.score(leaf[at], targets[index])
                logprobs[index] = scored.detach()
                if backward is not None:
                    backward(index, scored)
        if backward is not None:
            opened.append(_Open(segment, hidden, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad))
    while opened:
        _close(opened.pop())
    return logprobs, entropies


def _close(segment: _Open) -> None:
    """Run the backward pass of a segment, also without targets: its keys and values have gradients."""
    segment.hidden.backward(segment.grad)
