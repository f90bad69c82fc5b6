"""Sequence parallelism (DeepSpeed-Ulysses, arXiv:2309.14509): each rank holds a range of a pass's tokens.

Everything but attention works on a rank's own tokens. Before attention an all-to-all gives each rank all
tokens of some heads, and after it another one gives back the rank's own tokens of all heads. So attention
sees whole sequences: packing, prefix trees and sliding windows work unchanged. The gradients of the weights
are partial sums, to be added over the ranks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hone.train.errors import TrainError

if TYPE_CHECKING:
    from hone.train.attention import AttendFunction


def shard_length(tokens: int, ranks: int) -> int:
    """Return the number of tokens of each rank; the last ranks pad theirs."""
    return -(-tokens // ranks)


def own_range(tokens: int, group: dist.ProcessGroup) -> tuple[int, int]:
    """Return which of `tokens` this rank holds, as [start, end); empty where only padding is left."""
    length = shard_length(tokens, group.size())
    start = min(tokens, group.rank() * length)
    return start, min(tokens, start + length)


def own_tokens(values: Tensor, group: dist.ProcessGroup, padding: int = 0) -> Tensor:
    """Return this rank's part of `values` [1, U, ...], padded to `shard_length`."""
    start, end = own_range(values.shape[1], group)
    missing = shard_length(values.shape[1], group.size()) - end + start
    sides = (0, 0) * (values.ndim - 2) + (0, missing)  # from the last dimension on
    return functional.pad(values[:, start:end], sides, value=padding)


class UlyssesAttention:
    """Attention over a pass whose tokens are divided among the ranks of a group.

    Query heads are divided among the ranks. So are key and value heads, which are repeated first where there
    are fewer than ranks.
    """

    def __init__(self, attend: AttendFunction, tokens: int, group: dist.ProcessGroup) -> None:
        """`attend` is the attention of the whole pass, of `tokens` tokens."""
        self._attend = attend
        self._tokens = tokens
        self._group = group

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """See `AttendFunction`; the tensors hold this rank's tokens.

        Raises TrainError if the ranks cannot divide the heads.
        """
        ranks, heads, kv_heads = self._group.size(), query.shape[1], key.shape[1]
        if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
            raise TrainError(
                f"parallel.sequence is {ranks}, which does not divide {heads} query, {kv_heads} key heads: "
                "set it to a divisor of both, or to a multiple of the key heads that divides the query heads"
            )
        if kv_heads < ranks:
            key, value = (x.repeat_interleave(ranks // kv_heads, dim=1) for x in (key, value))
        query, key, value = (self._gather_tokens(x) for x in (query, key, value))
        out = self._attend(query, key, value, scale=scale, window=window, layer=layer)
        return self._gather_heads(out)

    def _gather_tokens(self, x: Tensor) -> Tensor:
        """From [1, H, T, D], this rank's tokens, to [1, H / ranks, U, D], this rank's heads."""
        ranks, (_, heads, length, width) = self._group.size(), x.shape
        received = _exchange(x.reshape(ranks, heads // ranks, length, width), self._group)
        every = received.transpose(0, 1).reshape(1, heads // ranks, ranks * length, width)
        return every[:, :, : self._tokens]

    def _gather_heads(self, x: Tensor) -> Tensor:
        """From [1, H / ranks, U, D], this rank's heads, to [1, H, T, D], this rank's tokens."""
        ranks, (_, heads, _, width) = self._group.size(), x.shape
        length = shard_length(self._tokens, ranks)
        padded = functional.pad(x, (0, 0, 0, ranks * length - self._tokens))
        received = _exchange(padded.view(heads, ranks, length, width).transpose(0, 1), self._group)
        return received.reshape(1, ranks * heads, length, width)


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send parts[r] to rank r; return the parts received, in order of rank. Differentiable."""
    return _AllToAll.apply(parts, group)  # pyright: ignore[reportReturnType]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        sent = torch.empty_like(grads[0], memory_format=torch.contiguous_format)
        dist.all_to_all_single(sent, grads[0].contiguous(), group=ctx.group)
        return sent, None
