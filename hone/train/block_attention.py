"""Attention over a forest on the CPU: exactly the visible pairs, in two kernel calls per segment.

In depth-first order, the queries below a segment form one range, and each of them sees the whole segment. So
a segment needs two calls: its own queries (causal), and all queries below it (no mask). The partial results
of a query are merged by their log-sum-exp, as in FlashAttention (arXiv:2205.14135) and ring attention
(arXiv:2310.01889). The backward kernel takes the merged output and log-sum-exp, which makes the gradient of
each block exact.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hone.train.forest import Forest

_MASKED = -1e30  # finite: a query that sees no key of a block gets the weight exp(-1e30 - ...) = 0, not NaN


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [q0, q1) against keys [k0, k1): causal on the diagonal, or all pairs below it."""

    q0: int
    q1: int
    k0: int
    k1: int
    causal: bool  # only with q0 == k0 and q1 == k1
    windowed: bool = False  # some pairs are farther apart than the sliding window


class BlockAttention:
    """Attention of the tokens of a forest to their paths, for tensors on the CPU."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._position_ids = torch.from_numpy(forest.position_ids)
        self._blocks: dict[int | None, list[Block]] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """Return [1, H, U, D] from query [1, H, U, D] and key, value [1, H_kv, U, D]; `layer` is unused."""
        if window not in self._blocks:
            self._blocks[window] = forest_blocks(self._forest, window)
        attend = BlockAttend(self._blocks[window], self._position_ids, window, scale)
        return _Attention.apply(query, key, value, attend)  # pyright: ignore[reportReturnType]


def forest_blocks(forest: Forest, window: int | None) -> list[Block]:
    """Return blocks that cover the visible pairs of `forest`, each pair once.

    A query attends to the last `window` tokens of its path, itself included; None: to all. The causal blocks
    come first and cover each query once.
    """
    starts, ends, last = forest.starts.tolist(), forest.ends.tolist(), forest.subtree_ends.tolist()
    own = [Block(a, b, a, b, causal=True) for a, b in zip(starts, ends, strict=True)]
    below = [Block(b, c, a, b, causal=False) for a, b, c in zip(starts, ends, last, strict=True) if c > b]
    if window is None:
        return own + below
    return [part for block in own + below for part in _within(block, window, forest)]


def _within(block: Block, window: int, forest: Forest) -> list[Block]:
    """Split the queries of `block` so that few pairs outside the window are computed."""
    positions = forest.position_ids
    parts: list[Block] = []
    size = max(window, 64)
    for q0 in range(block.q0, block.q1, size):
        q1 = min(q0 + size, block.q1)
        nearest = int(positions[q0:q1].min()) if not block.causal else int(positions[q0])
        farthest = int(positions[q0:q1].max())
        # keys have consecutive positions: those below nearest - window + 1 are outside for every query
        k0 = max(block.k0, block.k0 + nearest - window + 1 - int(positions[block.k0]))
        k1 = q1 if block.causal else block.k1
        if k0 < k1:
            cut = farthest - int(positions[k0]) >= window
            whole = block.causal and k0 == q0
            parts.append(Block(q0, q1, k0, k1, causal=whole, windowed=cut or (block.causal and not whole)))
    return parts


def path_blocks(start: int, end: int, window: int | None) -> list[Block]:
    """Return blocks of the queries [start, end) of a path against the keys [0, end) of the same path."""
    if window is None or end <= window:
        own = Block(start, end, start, end, causal=True)
        return [own, Block(start, end, 0, start, causal=False)] if start else [own]
    size = max(window, 64)
    return [
        Block(
            q0, min(q0 + size, end), max(0, q0 - window + 1), min(q0 + size, end), causal=False, windowed=True
        )
        for q0 in range(start, end, size)
    ]


@dataclass(frozen=True, slots=True)
class BlockAttend:
    """Attention over blocks, and its backward pass."""

    blocks: Sequence[Block]  # the first ones cover each query once, in order
    position_ids: Tensor  # int64, of the keys; a query is one of them
    window: int | None
    scale: float
    first_query: int = 0  # index of the first row of `query` in the order of the blocks

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [1, H, Q, D] and the log-sum-exp, float32 [1, H, Q]."""
        batch, heads, length, width = query.shape
        out = query.new_empty(batch, length, heads, width, dtype=torch.float32).transpose(1, 2)
        lse = torch.empty(batch, heads, length)
        filled = 0
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        for block in self.blocks:
            q, k, mask, causal = self._slices(block, query.dtype)
            part = kernel(
                query[:, :, q], key[:, :, k], value[:, :, k], 0.0, causal, attn_mask=mask, scale=self.scale
            )
            if q.start == filled:
                out[:, :, q], lse[:, :, q] = part
                filled = q.stop
            else:
                _merge(out[:, :, q], lse[:, :, q], *part)
        return out.to(query.dtype), lse

    def backward(
        self,
        grad: Tensor,
        tensors: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        lse: Tensor,
        sums: Sequence[Tensor],
    ) -> None:
        """Add the gradients of query, key and value to `sums`, float32 of the same shapes."""
        query, key, value = tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        for block in self.blocks:
            q, k, mask, causal = self._slices(block, query.dtype)
            parts = kernel(
                grad[:, :, q],
                query[:, :, q],
                key[:, :, k],
                value[:, :, k],
                out[:, :, q],
                lse[:, :, q],
                0.0,
                causal,
                attn_mask=mask,
                scale=self.scale,
            )
            for total, part, rows in zip(sums, parts, (q, k, k), strict=True):
                total[:, :, rows] += part

    def _slices(self, block: Block, dtype: torch.dtype) -> tuple[slice, slice, Tensor | None, bool]:
        """Return the rows of `query` and `key`, the additive mask and whether the block is causal."""
        queries = slice(block.q0 - self.first_query, block.q1 - self.first_query)
        mask = None
        if block.windowed and self.window is not None:
            index_q, index_k = torch.arange(block.q0, block.q1), torch.arange(block.k0, block.k1)
            distance = self.position_ids[index_q, None] - self.position_ids[None, index_k]
            hidden = (distance >= self.window) | (index_k[None] > index_q[:, None])
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, _MASKED)
        return queries, slice(block.k0, block.k1), mask, block.causal and mask is None


def _merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Add to `out` and `lse`, in place, the attention of the same queries to other keys."""
    total = torch.logaddexp(lse, more_lse)
    out.mul_((lse - total).exp_()[..., None])
    out.add_(more_out * (more_lse - total).exp_()[..., None])
    lse.copy_(total)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, attend: BlockAttend) -> Tensor:
        out, lse = attend.forward(query, key, value)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.attend = attend
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        sums = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (query, key, value)]
        ctx.attend.backward(grads[0], (query, key, value), out, lse, sums)
        return (*(total.to(query.dtype) for total in sums), None)
