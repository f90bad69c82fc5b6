"""From samples to forward passes: mini-batches of whole rollouts, micro-batches within a token budget.

Invariant: splitting a mini-batch into micro-batches changes neither its loss nor its gradient, because each
token's `scale` is normalised over the whole mini-batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hone.types import Float32, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A sample with its scale and log-probabilities in one mini-batch."""

    sample: Sample
    scale: Float32  # [T] see `token_scales`
    old_logprobs: Float32 | None  # [T]; None: those of the forward pass itself
    reference: Float32 | None = None  # [T] the reference model's log-probabilities

    @property
    def trained(self) -> npt.NDArray[np.intp]:
        """Indices of the trained tokens, [n], ascending."""
        return np.flatnonzero(self.sample.weight)

    @property
    def length(self) -> int:
        """Number of tokens up to the last trained one; later tokens cannot change the loss."""
        return int(self.trained[-1]) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass. N counts the trained tokens, row by row; the flat arrays are parallel."""

    rows: list[int]  # [B] which rows of the mini-batch these are
    trained: list[int]  # [B] number of trained tokens of each row; their sum is N
    input_ids: Tensor  # int64 [B, L], padded on the right
    positions: Tensor  # int64 [N], index into [B * L] of the position that predicts each trained token
    targets: Tensor  # int64 [N]
    scale: Tensor  # float32 [N]
    advantages: Tensor  # float32 [N]
    engine_logprobs: Tensor  # float32 [N]
    old_logprobs: Tensor | None  # float32 [N]
    reference: Tensor | None  # float32 [N]
    tokens: int  # without padding


def indices_by_rollout(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the indices of each rollout's samples, in order of first appearance."""
    by_rollout: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        by_rollout.setdefault(sample.rollout_id, []).append(index)
    return list(by_rollout.values())


def split_rollouts(samples: Sequence[Sample], parts: int, rng: np.random.Generator) -> list[list[int]]:
    """Return indices of `samples` in at most `parts` mini-batches of nearly equally many whole rollouts."""
    rollouts = indices_by_rollout(samples)
    order = rng.permutation(len(rollouts)) if parts > 1 else np.arange(len(rollouts))
    chunks = np.array_split(order, parts)
    return [[index for at in chunk for index in rollouts[at]] for chunk in chunks if len(chunk)]


def plan(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Return groups of indices with rows x longest row <= `budget_tokens`; a longer row is a group by itself.

    Rows of similar length share a group, the longest first, so that peak memory is reached at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for index in order:
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= budget_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def micro_batches(rows: Sequence[TrainRow], budget_tokens: int, device: torch.device) -> list[MicroBatch]:
    """Pack rows into padded forward passes of at most `budget_tokens`, padding included."""
    lengths = [row.length for row in rows]
    return [_collate(rows, group, lengths, device) for group in plan(lengths, budget_tokens)]


def _collate(
    every: Sequence[TrainRow], indices: list[int], every_length: Sequence[int], device: torch.device
) -> MicroBatch:
    rows, lengths = [every[i] for i in indices], [every_length[i] for i in indices]
    width = max(lengths)
    input_ids = np.zeros((len(rows), width), np.int64)
    trained = [row.trained for row in rows]
    for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        input_ids[at, :length] = row.sample.tokens[:length]

    def flat(arrays: list[Float32]) -> Tensor:
        chosen = [array[at] for array, at in zip(arrays, trained, strict=True)]
        return torch.from_numpy(np.concatenate(chosen)).to(device)

    positions = np.concatenate([at * width + columns - 1 for at, columns in enumerate(trained)])
    old = [row.old_logprobs for row in rows if row.old_logprobs is not None]
    reference = [row.reference for row in rows if row.reference is not None]
    ids = torch.from_numpy(input_ids).to(device)
    where = torch.from_numpy(positions.astype(np.int64)).to(device)
    return MicroBatch(
        rows=indices,
        trained=[len(at) for at in trained],
        input_ids=ids,
        positions=where,
        targets=ids.flatten()[where + 1],
        scale=flat([row.scale for row in rows]),
        advantages=flat([row.sample.advantage for row in rows]),
        engine_logprobs=flat([row.sample.logprobs for row in rows]),
        old_logprobs=flat(old) if old else None,
        reference=flat(reference) if reference else None,
        tokens=sum(lengths),
    )
