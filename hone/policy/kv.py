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

from hone.types import Int32, Routing

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCache:
    """The keys and values of a conversation between its turns."""

    tokens: Int32  # [T]
    states: Tensor  # [2 (keys, values), layers, kv_heads, T, head_dim]
    routing: Sequence[Routing] = ()  # [T] of [layers, k], the experts of each position; () for a dense model


class RowCache:
    """Keys and values of the batch, one row per request; the model's `past_key_values`.

    `states` is [2 (keys, values), layers, rows, kv_heads, capacity + 1, head_dim] and grows with the longest
    row. The last column receives the writes of padding tokens and is never read.
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
        shape = (2, layers, rows, kv_heads, _FIRST_CAPACITY + 1, head_dim)
        self.states = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = slice(0, 0)
        self._lines = _line_starts(self.states)
        self._flat = torch.zeros(0, dtype=torch.int64)
        self._length = 0

    @property
    def capacity(self) -> int:
        return self.states.shape[4] - 1

    def reserve(self, length: int) -> None:
        """Grow the cache to hold rows of `length` tokens."""
        if length <= self.capacity:
            return
        old, columns = self.states, max(length, 2 * self.capacity) + 1
        self.states = old.new_zeros((*old.shape[:4], columns, old.shape[5]))
        self.states[..., : old.shape[4], :] = old  # with the padding column; the row's tokens overwrite it
        self._lines = _line_starts(self.states)

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
        keys, values = self.states[0, layer_idx], self.states[1, layer_idx]
        width = keys.shape[-1]
        keys.view(-1, width).index_copy_(0, self._flat, key_states.reshape(-1, width))
        values.view(-1, width).index_copy_(0, self._flat, value_states.reshape(-1, width))
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def save(self, row: int, tokens: Sequence[int], routing: Sequence[Routing] = ()) -> SavedCache:
        """Return a copy of the row's first len(tokens) positions, whose `routing` goes along."""
        states = self.states[:, :, row, :, : len(tokens)].clone()
        return SavedCache(tokens=np.asarray(tokens, np.int32), states=states, routing=tuple(routing))

    def load(self, row: int, saved: SavedCache, length: int) -> None:
        """Copy the first `length` positions of `saved` into the row."""
        self.states[:, :, row, :, :length] = saved.states[..., :length, :]

    def copy(self, source: int, target: int, length: int) -> None:
        self.states[:, :, target, :, :length] = self.states[:, :, source, :, :length]


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


def _line_starts(states: Tensor) -> Tensor:
    """Return int64 [rows, kv_heads, 1]: the start of each head in a layer flattened to [.., head_dim]."""
    rows, heads, columns = states.shape[2:5]
    return torch.arange(rows * heads, device=states.device).view(rows, heads, 1) * columns


def shared_prefix(left: Int32, right: Int32) -> int:
    """Return the length of the common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
