"""Token-level prefix trees over the branches of a batch: each shared token is computed once.

The unique tokens lie in depth-first order, so the tokens below any position form one range behind it. Query q
sees key k exactly if k <= q < end of the subtree of k, which is the path from the root to q. Only computation
is shared: every trained token of every branch stays a target of its own.

Example: the branches [5, 6, 7] and [5, 6, 8, 9] give the tokens [5, 6, 7, 8, 9] with position ids
[0, 1, 2, 2, 3] and the segments [0, 2), [2, 3) and [3, 5), the last two with parent 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hone.types import Int32

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Branch:
    """A token sequence up to its last trained token, and the trained positions in it."""

    tokens: Int32  # [L]
    trained: Int64  # [n], ascending, each >= 1: the position before a token predicts it

    @property
    def sort_key(self) -> tuple[bytes, bytes]:
        """Key of the lexicographic order of tokens."""
        return self.tokens.astype(">u4").tobytes(), self.trained.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Unique tokens of some branches in depth-first order. U counts them, S the segments.

    A segment is a run of tokens without a fork. Segments are in order of their start, a parent before its
    children, and cover all tokens.
    """

    tokens: Int64  # [U]
    position_ids: Int64  # [U], the number of tokens before it on its path
    starts: Int64  # [S]
    ends: Int64  # [S], exclusive
    parents: Int64  # [S], index of the segment; -1 for a root
    subtree_ends: Int64  # [S], end of the last token below the segment, exclusive
    predictors: tuple[Int64, ...]  # per branch, [n]: index into [U] of the position before each trained token
    branch_tokens: int  # sum of the lengths of the branches

    @property
    def visible_pairs(self) -> int:
        """Number of (query, key) pairs of attention without a sliding window."""
        return int(self.position_ids.sum()) + len(self.tokens)

    @property
    def longest_path(self) -> int:
        """Number of tokens of the longest path from a root."""
        return int(self.position_ids.max()) + 1


def depth_first_order(branches: Sequence[Branch]) -> list[int]:
    """Return the indices of `branches` in lexicographic order, in which shared prefixes are neighbours."""
    return sorted(range(len(branches)), key=lambda i: branches[i].sort_key)


def shared_prefix(one: Int32, other: Int32) -> int:
    """Return the number of tokens that both sequences begin with."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def build_forest(branches: Sequence[Branch], *, share: bool) -> Forest:
    """Return the prefix tree of `branches`; without `share`, one root segment per branch (packing).

    `predictors` is parallel to `branches`. The other arrays do not depend on the order of `branches`.
    """
    builder = _Builder()
    predictors: dict[int, Int64] = {}
    for index in depth_first_order(branches):
        branch = branches[index]
        builder.add(branch.tokens, share)
        predictors[index] = builder.flat_path()[branch.trained - 1]
    starts = np.array(sorted(builder.parent_token), np.int64)
    ends = np.append(starts[1:], builder.size)
    parent_tokens = np.array([builder.parent_token[int(start)] for start in starts], np.int64)
    parents = np.where(parent_tokens < 0, -1, np.searchsorted(starts, parent_tokens, side="right") - 1)
    return Forest(
        tokens=np.concatenate(builder.tokens),
        position_ids=np.concatenate(builder.positions),
        starts=starts,
        ends=ends,
        parents=parents,
        subtree_ends=_subtree_ends(ends, parents),
        predictors=tuple(predictors[i] for i in range(len(branches))),
        branch_tokens=sum(len(branch.tokens) for branch in branches),
    )


def path_to(forest: Forest, last: int) -> Int64:
    """Return the indices into [U] of the positions from a root to `last`."""
    segment = int(np.searchsorted(forest.starts, last, side="right")) - 1
    pieces: list[Int64] = [np.arange(forest.starts[segment], last + 1)]
    while (segment := int(forest.parents[segment])) >= 0:
        pieces += [np.arange(forest.starts[segment], forest.ends[segment])]
    return np.concatenate(pieces[::-1])


def _subtree_ends(ends: Int64, parents: Int64) -> Int64:
    last = ends.copy()
    for segment in range(len(parents) - 1, -1, -1):
        parent = parents[segment]
        if parent >= 0:
            last[parent] = max(last[parent], last[segment])
    return last


class _Builder:
    """Appends branches in lexicographic order. The path is that of the branch added last."""

    def __init__(self) -> None:
        self.size = 0
        self.tokens: list[Int64] = []
        self.positions: list[Int64] = []
        self.parent_token: dict[int, int] = {}  # start of each segment -> index of the token before it, or -1
        self._last: Int32 = np.zeros(0, np.int32)
        self._depths: list[int] = []  # path, in pieces of neighbouring tokens: depth of each piece's start
        self._flats: list[int] = []  # and its index into [U]

    def add(self, tokens: Int32, share: bool) -> None:
        shared = shared_prefix(self._last, tokens) if share else 0
        if shared < len(self._last):
            self._fork(shared)
        elif not self._depths:
            self.parent_token[self.size] = -1
        while self._depths and self._depths[-1] >= shared:
            self._depths.pop()
            self._flats.pop()
        if shared < len(tokens):
            self._depths.append(shared)
            self._flats.append(self.size)
            self.tokens.append(tokens[shared:].astype(np.int64))
            self.positions.append(np.arange(shared, len(tokens), dtype=np.int64))
            self.size += len(tokens) - shared
        self._last = tokens

    def flat_path(self) -> Int64:
        """Return the index into [U] of each token of the branch added last."""
        ends = [*self._depths[1:], len(self._last)]
        pieces = zip(self._depths, ends, self._flats, strict=True)
        return np.concatenate([np.arange(flat, flat + end - depth) for depth, end, flat in pieces])

    def _fork(self, depth: int) -> None:
        """Start segments at the two tokens that follow the first `depth` tokens of the path."""
        parent = self._flat(depth - 1) if depth else -1
        self.parent_token[self._flat(depth)] = parent
        self.parent_token[self.size] = parent

    def _flat(self, depth: int) -> int:
        piece = bisect_right(self._depths, depth) - 1
        return self._flats[piece] + depth - self._depths[piece]
