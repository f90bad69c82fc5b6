"""From samples to forward passes: mini-batches of whole rollouts, passes of planned rows.

Invariant: splitting a mini-batch into passes changes neither its loss nor its gradient, because each token's
`scale` is normalised over the whole mini-batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hone.train.forest import Branch, Forest, Int64
from hone.train.passes import CostModel, Kind, PlannedPass, plan_passes
from hone.train.routing import merge_routing
from hone.train.settings import Tree
from hone.types import Float32, Routing, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A sample with its scale and log-probabilities in one mini-batch."""

    sample: Sample
    scale: Float32  # [T] see `token_scales`
    old_logprobs: Float32 | None  # [T]; None: those of the forward pass itself
    reference: Float32 | None = None  # [T] the reference model's log-probabilities
    values: Float32 | None = None  # [T] the critic's, before the first optimiser step
    returns: Float32 | None = None  # [T] the targets of the critic's values

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
    forest: Forest  # the tokens of the pass
    kind: Kind  # how they are computed
    cost: float  # predicted seconds
    predictors: Int64  # [N], index into the forest of the position that predicts each trained token
    targets: Tensor  # int64 [N]
    scale: Tensor  # float32 [N]
    advantages: Tensor  # float32 [N]
    engine_logprobs: Tensor  # float32 [N]
    old_logprobs: Tensor | None  # float32 [N]
    reference: Tensor | None  # float32 [N]
    values: Tensor | None = None  # float32 [N]
    returns: Tensor | None = None  # float32 [N]
    routing: Routing | None = None  # [U, layers, k], the experts to use at each position of the forest

    def select(self, index: Tensor) -> MicroBatch:
        """Return the same pass with the flat arrays at `index`, int64 [n]; `rows` and `trained` stay."""
        chosen = {
            field.name: value[index]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, predictors=self.predictors[index.cpu().numpy()], **chosen)

    def by_row(self, values: Tensor) -> list[tuple[int, Float32]]:
        """Return each row with its part, [n], of `values` [N]."""
        parts = np.split(values.detach().float().cpu().numpy(), np.cumsum(self.trained)[:-1])
        return list(zip(self.rows, parts, strict=True))


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


def micro_batches(
    rows: Sequence[TrainRow],
    *,
    tree: Tree,
    budget_tokens: int,
    cost: CostModel,
    device: torch.device,
    parts: int = 1,
    in_rounds: bool = False,
    replay: bool = False,
) -> list[MicroBatch]:
    """Divide rows into forward passes on `device`; see `plan_passes`. Depth first is for CPUs only.

    `replay`: the passes use the recorded experts of their rows.
    """
    branches = [Branch(row.sample.tokens[: row.length], row.trained.astype(np.int64)) for row in rows]
    planned = plan_passes(
        branches,
        tree=tree,
        budget_tokens=budget_tokens,
        cost=cost,
        parts=parts,
        in_rounds=in_rounds,
        may_go_deep=device.type == "cpu",
    )
    return [_collate(rows, each, device, replay) for each in planned]


def _collate(
    every: Sequence[TrainRow], planned: PlannedPass, device: torch.device, replay: bool
) -> MicroBatch:
    rows = [every[i] for i in planned.rows]
    trained = [row.trained for row in rows]

    def flat(arrays: Sequence[npt.NDArray[np.float32 | np.int32]]) -> Tensor:
        chosen = [array[at] for array, at in zip(arrays, trained, strict=True)]
        return torch.from_numpy(np.concatenate(chosen)).to(device)

    def flat_if_given(arrays: Sequence[Float32 | None]) -> Tensor | None:
        given = [array for array in arrays if array is not None]
        return flat(given) if given else None

    return MicroBatch(
        rows=planned.rows,
        trained=[len(at) for at in trained],
        forest=planned.forest,
        kind=planned.kind,
        cost=planned.cost,
        predictors=np.concatenate(planned.forest.predictors),
        targets=flat([row.sample.tokens for row in rows]).long(),
        scale=flat([row.scale for row in rows]),
        advantages=flat([row.sample.advantage for row in rows]),
        engine_logprobs=flat([row.sample.logprobs for row in rows]),
        old_logprobs=flat_if_given([row.old_logprobs for row in rows]),
        reference=flat_if_given([row.reference for row in rows]),
        values=flat_if_given([row.values for row in rows]),
        returns=flat_if_given([row.returns for row in rows]),
        routing=merge_routing(planned.forest, [row.sample.routing for row in rows]) if replay else None,
    )
