"""The advantages of the rollouts of a group, as the run's algorithm computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hone.outcomes import Outcome
from hone.rollout.errors import StoreError
from hone.train.algorithms import Advantages, compute_advantages
from hone.train.errors import TrainError
from hone.types import Node, TokenTree, Trajectory
from hone.view.reader import RunReader
from hone.view.records import RolloutRow, RunKind


def group_advantages(reader: RunReader, rows: Sequence[RolloutRow]) -> Advantages | None:
    """Return the advantages of the rollouts of one group; None outside of a training, or without settings.

    Without rewards for single turns they follow from the table's rows; otherwise stored rollouts are read.
    None, too, where a critic or a teacher estimates them: only the records of a step's tokens tell those.
    """
    settings = reader.settings()
    if settings is None or reader.kind is not RunKind.TRAINING:
        return None
    algorithm = settings.train.algorithm
    if algorithm.algorithm.critic is not None or settings.train.distill.enabled:
        return None
    ended = [row for row in rows if row.outcome is not None and row.directory is not None]
    if any(row.step is not None for row in ended):  # an attempt that no step consumed is in no baseline
        ended = [row for row in ended if row.step is not None]
    try:
        trajectories = [
            reader.store.load(row.directory or "")
            if algorithm.uses_turns or getattr(algorithm, "reward", "outcome") != "outcome"
            else _light(row)
            for row in ended
        ]
        masked = [row.rollout_id for row in ended if row.disposition == "masked"]
        return compute_advantages(trajectories, algorithm, masked=masked)
    except (TrainError, StoreError):
        return None


def _light(row: RolloutRow) -> Trajectory:
    """Return a rollout with what an algorithm may look at: outcome, reward and number of sampled tokens."""
    tokens = np.zeros(row.sampled_tokens or 0, np.int32)
    node = Node(
        parent=None, tokens=tokens, sampled=True, logprobs=tokens.astype(np.float32), version=tokens, turn=0
    )
    return Trajectory(
        task_id=row.task_id,
        rollout_id=row.rollout_id,
        group_id=row.group_id,
        tree=TokenTree([node]),
        turns=(),
        messages=(),
        patch="",
        outcome=Outcome(row.outcome or ""),
        reward=row.reward,
    )
