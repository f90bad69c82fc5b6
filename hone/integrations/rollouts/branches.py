"""From a trajectory to the rows that another trainer takes: one prompt and one response per branch.

Invariant: over the rows of a rollout, each sampled token has mask 1 at most once; every other token has mask
0 and log-probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hone.rollout.rewards import is_infrastructure_fault
from hone.train.samples import tree_samples
from hone.types import Float32, Int32, Sample, Trajectory

FILLER = 0  # a token id that every vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One row: `prompt_ids` end before the first token that the row trains, `response_ids` with the last."""

    prompt_ids: Int32  # [P]
    response_ids: Int32  # [R]
    response_mask: Int32  # [R]; 1: sampled, and trained in this row
    logprobs: Float32  # [R]; the engine's; 0 where the mask is 0
    versions: Int32  # [R]; the weights that sampled each token; -1 where no engine did

    @property
    def min_version(self) -> int | None:
        """The oldest weights that sampled a token of the response; None without such a token."""
        sampled = self.versions[self.versions >= 0]
        return int(sampled.min()) if len(sampled) else None

    @property
    def max_version(self) -> int | None:
        """The newest weights that sampled a token of the response; None without such a token."""
        sampled = self.versions[self.versions >= 0]
        return int(sampled.max()) if len(sampled) else None


def branches(trajectory: Trajectory, *, masked: bool = False) -> tuple[Branch, ...]:
    """Return one row per branch of the token tree with a sampled token that no earlier branch contains.

    Never empty: an infrastructure fault, and a rollout without a sampled token, is one row of two filler
    tokens with mask 0. With `masked` (see `RolloutService.is_masked`), all rows have mask 0.

    Example: root P; P -> A (sampled) -> E -> B (sampled), and P -> A -> F -> C (sampled):
        row 0: prompt P, response A + E + B with mask [1]*|A| + [0]*|E| + [1]*|B|
        row 1: prompt P + A + F, response C with mask [1]*|C|
    """
    if is_infrastructure_fault(trajectory.outcome):
        return (masked_row(),)
    samples = tree_samples(
        trajectory.tree, rollout_id=trajectory.rollout_id, group_id=trajectory.group_id, advantage=0.0
    )
    return tuple(_branch(sample, masked=masked) for sample in samples) or (masked_row(),)


def masked_row() -> Branch:
    """Return a row that trains nothing."""
    return Branch(
        prompt_ids=np.array([FILLER], np.int32),
        response_ids=np.array([FILLER], np.int32),
        response_mask=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        versions=np.full(1, -1, np.int32),
    )


def _branch(sample: Sample, *, masked: bool) -> Branch:
    trained = np.flatnonzero(sample.weight)
    start, end = int(trained[0]), int(trained[-1]) + 1
    mask = (sample.weight[start:end] > 0) & (not masked)
    return Branch(
        prompt_ids=sample.tokens[:start],
        response_ids=sample.tokens[start:end],
        response_mask=mask.astype(np.int32),
        logprobs=np.where(mask, sample.logprobs[start:end], 0).astype(np.float32),
        versions=sample.version[start:end],
    )
