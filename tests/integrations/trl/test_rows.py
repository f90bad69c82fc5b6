"""Groups of rollouts as rows of TRL."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.config import ConfigError
from hone.integrations.trl.buffer import RowBuffer
from hone.integrations.trl.rows import Row, group_rows, require_group_advantages
from hone.outcomes import Outcome
from hone.train.algorithms import compute_advantages
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.gspo import GspoSettings
from hone.train.algorithms.ppo import PpoSettings
from hone.train.algorithms.reinforce_pp import ReinforcePPSettings
from hone.train.algorithms.rloo import RlooSettings
from hone.train.algorithms.step_wise import StepWiseSettings
from hone.types import Trajectory
from tests.integrations.rollouts.examples import forked_tree, trajectory, trees

OUTCOMES = (Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.TURN_LIMIT, Outcome.ENGINE_ERROR)


def rows_of(group: list[Trajectory], masked: bool = False) -> list[Row]:
    return group_rows(
        group,
        RlooSettings(),
        group_id=7,
        is_masked=lambda each: masked and each.outcome is Outcome.TURN_LIMIT,
    )


def test_fork_gives_two_rows_that_train_each_token_once() -> None:
    group = [
        trajectory(forked_tree(), rollout_id="a"),
        trajectory(outcome=Outcome.UNRESOLVED, rollout_id="b"),
    ]
    first, second = rows_of(group)
    assert first.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.completion_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert second.input_ids.tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
    assert second.completion_mask.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert (first.model_version, second.model_version) == (5, 7)
    assert (first.group_id, first.advantage, second.advantage) == (7, 2.0, 2.0)
    assert first.metrics["reward"] == 1.0


@given(
    drawn=st.lists(st.tuples(trees(), st.sampled_from(OUTCOMES)), min_size=1, max_size=6),
    masked=st.booleans(),
)
def test_rows_carry_the_advantages_of_hone_and_no_fault(
    drawn: list[tuple[object, Outcome]], masked: bool
) -> None:
    group = [
        trajectory(tree, outcome, rollout_id=f"r{i}")  # pyright: ignore[reportArgumentType]
        for i, (tree, outcome) in enumerate(drawn)
    ]
    hidden = [t.rollout_id for t in group if masked and t.outcome is Outcome.TURN_LIMIT]
    advantages = compute_advantages(group, RlooSettings(), masked=hidden).advantages
    trained = [t for t in group if t.rollout_id in advantages]
    rows = rows_of(group, masked)
    assert sum(int(row.completion_mask.sum()) for row in rows) == sum(t.tree.sampled_tokens for t in trained)
    assert {row.advantage for row in rows} <= set(advantages.values())
    for row in rows:
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        assert not row.old_log_probs[row.completion_mask == 0].any()
        assert np.isfinite(row.advantage)


@pytest.mark.parametrize(
    "algorithm", [PpoSettings(), StepWiseSettings(), ReinforcePPSettings(), GspoSettings()]
)
def test_algorithm_that_needs_more_than_a_group_is_refused(algorithm: object) -> None:
    with pytest.raises(ConfigError, match="set one of grpo, dr_grpo, rloo, opo, dapo"):
        require_group_advantages(algorithm)  # pyright: ignore[reportArgumentType]
    require_group_advantages(GrpoSettings())


def test_buffer_tells_when_the_last_row_of_a_group_is_taken() -> None:
    taken: list[int] = []
    buffer = RowBuffer(taken.append)
    first, second = (rows_of([trajectory(forked_tree(), rollout_id="a")]) for _ in range(2))
    buffer.put_group(first)
    buffer.put_group([Row(**{**vars_of(row), "group_id": 8}) for row in second])
    assert buffer.qsize() == 4
    seen = []
    for _ in range(4):
        buffer.get(timeout=1)
        seen.append(list(taken))
    assert seen == [[], [7], [7], [7, 8]]


def vars_of(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__slots__}
