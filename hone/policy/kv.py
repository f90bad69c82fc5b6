# pyright: reportUnknownMemberType=false
"""The KV caches of the rows in the batch and of idle conversations.

Invariant: a cached position is reused only for the same token after the same tokens, computed with the same
weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hone.types import Int32

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCache:
    """The keys and values of a conversation between its turns."""

    tokens: Int32  # [T]
    keys: Tensor  # [layers, kv_heads, T, head_dim]
    values: Tensor  # [layers, kv_heads, T, head_dim]


class RowCache:
    """Keys and values of the batch, one row per request; the model's `past_key_values`.

    `keys` and `values` are [layers, rows, kv_heads, capacity + 1, head_dim] and grow with the longest row.
    The last column receives the writes of padding tokens and is never read.
    """

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, rows, kv_heads, _FIRST_CAPACITY + 1, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = slice(0, 0)
        self._lines = _line_starts(self.keys)
        self._flat = torch.zeros(0, dtype=torch.int64)
        self._length = 0

    @property
    def capacity(self) -> int:
        return self.keys.shape[3] - 1

    def reserve(self, length: int) -> None:
        """Grow the cache to hold rows of `length` tokens."""
        if length <= self.capacity:
            return
        capacity = max(length, 2 * self.capacity)
        self.keys, self.values = _grown(self.keys, capacity + 1), _grown(self.values, capacity + 1)
        self._lines = _line_starts(self.keys)

    def set_targets(self, first: int, columns: Tensor, length: int) -> None:
        """Set where the next forward pass writes: row `first` + i, columns[i]; `columns` is int64 [rows, T].

        Attention then reads the first `length` columns.
        """
        self._rows = slice(first, first + columns.shape[0])
        self._flat = (self._lines[self._rows] + columns[:, None, :]).view(-1)
        self._length = length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new states [rows, kv_heads, T, head_dim]; transformers calls this in each layer.

        Returns the keys and values [rows, kv_heads, length, head_dim] to attend to.
        """
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        width = keys.shape[-1]
        keys.view(-1, width).index_copy_(0, self._flat, key_states.reshape(-1, width))
        values.view(-1, width).index_copy_(0, self._flat, value_states.reshape(-1, width))
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def save(self, row: int, tokens: Sequence[int]) -> SavedCache:
        """Return a copy of the row's first len(tokens) positions."""
        length = len(tokens)
        return SavedCache(
            tokens=np.asarray(tokens, np.int32),
            keys=self.keys[:, row, :, :length].clone(),
            values=self.values[:, row, :, :length].clone(),
        )

    def load(self, row: int, saved: SavedCache, length: int) -> None:
        """Copy the first `length` positions of `saved` into the row."""
        self.keys[:, row, :, :length] = saved.keys[:, :, :length]
        self.values[:, row, :, :length] = saved.values[:, :, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


class SessionCaches:
    """An LRU cache of the keys and values of idle conversations."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._saved: OrderedDict[str, SavedCache] = OrderedDict()

    def __len__(self) -> int:
        return len(self._saved)

    def put(self, session: str, saved: SavedCache) -> None:
        self._saved[session] = saved
        self._saved.move_to_end(session)
        while len(self._saved) > self._limit:
            self._saved.popitem(last=False)

    def has(self, session: str) -> bool:
        return session in self._saved

    def find(self, session: str, tokens: Int32) -> tuple[SavedCache, int] | None:
        """Return the cache with the longest common prefix with `tokens`, and its length; None without any.

        A conversation with a cache of its own uses no other.
        """
        own = self._saved.get(session)
        best: tuple[SavedCache, int] | None = None
        for saved in [own] if own is not None else self._saved.values():
            length = shared_prefix(saved.tokens, tokens)
            if length > (best[1] if best else 0):
                best = (saved, length)
        return best

    def drop(self, session: str) -> None:
        self._saved.pop(session, None)

    def clear(self) -> None:
        self._saved.clear()


def _grown(old: Tensor, columns: int) -> Tensor:
    new = old.new_zeros((*old.shape[:3], columns, old.shape[4]))
    new[..., : old.shape[3], :] = old  # includes the padding column; the row's tokens overwrite it
    return new


def _line_starts(keys: Tensor) -> Tensor:
    """Return int64 [rows, kv_heads, 1]: the start of each head in a layer flattened to [.., head_dim]."""
    _, rows, heads, columns, _ = keys.shape
    return torch.arange(rows * heads, device=keys.device).view(rows, heads, 1) * columns


def shared_prefix(left: Int32, right: Int32) -> int:
    """Return the length of the common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
