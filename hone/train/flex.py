"""Attention over a forest on CUDA: FlexAttention, with a block mask computed from the ends of subtrees."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from hone.train.forest import Forest

BLOCK = 128  # tokens; FlexAttention's own default


class FlexAttention:
    """Attention of the tokens of a forest to their paths. The kernel is compiled at the first call."""

    def __init__(self, forest: Forest, device: torch.device) -> None:
        self._forest = forest
        self._device = device
        self._masks: dict[int | None, BlockMask] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """Return [1, H, U, D] from query [1, H, U, D] and key, value [1, H_kv, U, D]; `layer` is unused."""
        if window not in self._masks:
            self._masks[window] = forest_block_mask(self._forest, window, self._device)
        return _kernel(self._device.type)(
            query,
            key,
            value,
            block_mask=self._masks[window],
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )


def forest_block_mask(forest: Forest, window: int | None, device: torch.device) -> BlockMask:
    """Return the mask of the visible pairs, made from blocks without a mask of U x U elements.

    Block (i, j) of queries and keys has a visible pair if a key's subtree ends after the first query of i
    (always for i == j), and all pairs are visible if every key's subtree ends after the last query of i.
    """
    size = len(forest.tokens)
    last = forest.subtree_ends.repeat(forest.ends - forest.starts)
    first_query = np.arange(0, size, BLOCK)
    last_query = np.minimum(first_query + BLOCK, size) - 1
    below = first_query[:, None] > first_query[None]  # blocks of keys before the queries
    diagonal = np.eye(len(first_query), dtype=bool)
    longest, shortest = (f.reduceat(last, first_query) for f in (np.maximum, np.minimum))
    some = diagonal | (below & (longest[None] > first_query[:, None]))
    full = below & (shortest[None] > last_query[:, None])
    if window is not None:
        low, high = (f.reduceat(forest.position_ids, first_query) for f in (np.minimum, np.maximum))
        some &= low[:, None] - high[None] < window
        full &= high[:, None] - low[None] < window
    ends = torch.from_numpy(last).to(device)
    positions = torch.from_numpy(forest.position_ids).to(device)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < ends[key])
        return seen if window is None else seen & (positions[query] - positions[key] < window)

    return BlockMask.from_kv_blocks(
        *_rows(some & ~full, device),
        *_rows(full, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(size, size),
    )


def _rows(blocks: np.ndarray[Any, np.dtype[np.bool_]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number and, first in each row, the indices of the true elements, int32 [1, 1, n(, n)]."""
    counts = blocks.sum(1).astype(np.int32)
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


@functools.cache
def _kernel(device: str) -> Callable[..., Any]:
    """Return the compiled kernel; the plain one on the CPU, which has no compiled backward pass."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention)
