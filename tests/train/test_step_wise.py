"""Advantages per turn: what a turn is worth against the same turn of the rest of its group."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.rewards import final_score
from hone.train.algorithms import compute_advantages
from hone.train.algorithms.step_wise import StepWiseSettings
from hone.train.errors import TrainError
from hone.train.loop import to_samples
from hone.train.settings import TrainSettings
from hone.types import FinalScore, Scores, TokenTree, Trajectory
from tests.train.trajectories import rendered, sampled, trajectory, with_turns

STEP_WISE = StepWiseSettings()
FAULTS = [o for o, rule in OUTCOME_RULES.items() if rule.fault is Fault.INFRASTRUCTURE]
worth = st.floats(-3, 3).map(lambda x: round(x, 2))


def rollout(name: str, outcome: float, rewards: list[float | None], group_id: str = "g") -> Trajectory:
    """One turn per entry, each with one sampled token; None: a turn that nobody scored."""
    tree = TokenTree([rendered(None, [0])])
    nodes: list[int | None] = []
    for i in range(len(rewards)):
        nodes.append(tree.append(sampled(len(tree.nodes) - 1, [10 + i])))
    made = trajectory(name, group_id=group_id, reward=outcome, tree=tree)
    return with_turns(made, nodes, {i: r for i, r in enumerate(rewards) if r is not None})


@st.composite
def batches(draw: st.DrawFn) -> list[Trajectory]:
    turns = st.lists(st.none() | worth, max_size=4)
    return [
        rollout(f"g{g}r{i}", draw(worth), draw(turns), group_id=f"g{g}")
        for g in range(draw(st.integers(1, 3)))
        for i in range(draw(st.integers(1, 4)))
    ]


def test_turn_is_compared_with_the_same_turn_of_its_group() -> None:
    batch = [
        rollout("a", 1, [1.0, 0.5]),
        rollout("b", -1, [1.0, -0.5, 1.0]),
        rollout("c", -1, [0.0]),
    ]
    credit = compute_advantages(batch, STEP_WISE)
    first = np.array([2.0, 0.0, -1.0])
    expected = (first - first.mean()) / first.std(ddof=1)
    assert [credit.turn_advantages[name][0] for name in "abc"] == pytest.approx(expected.tolist())
    assert credit.turn_advantages["a"][1] == pytest.approx(1 / np.sqrt(2))  # 1.5 against -1.5
    assert credit.turn_advantages["b"][1] == pytest.approx(-1 / np.sqrt(2))
    assert credit.turn_advantages["b"][2] == 0.0  # nobody else got there
    assert credit.advantages == pytest.approx(
        {"a": 2 / np.sqrt(3), "b": -1 / np.sqrt(3), "c": -1 / np.sqrt(3)}
    )


@given(batches())
def test_advantages_of_a_turn_index_sum_to_zero_in_each_group(batch: list[Trajectory]) -> None:
    credit = compute_advantages(batch, STEP_WISE)
    sums: dict[tuple[str, int], float] = {}
    for member in batch:
        turns = credit.turn_advantages.get(member.rollout_id, {})
        assert set(turns) == {turn.index for turn in member.turns}
        for index, value in turns.items():
            sums[member.group_id, index] = sums.get((member.group_id, index), 0.0) + value
    assert all(total == pytest.approx(0, abs=1e-6) for total in sums.values())


@given(batches(), st.randoms(use_true_random=False))
def test_order_of_rollouts_does_not_change_advantages(batch: list[Trajectory], random: object) -> None:
    mixed = list(batch)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = compute_advantages(batch, STEP_WISE), compute_advantages(mixed, STEP_WISE)
    assert other.advantages == pytest.approx(one.advantages)
    assert set(other.turn_advantages) == set(one.turn_advantages)
    for name, turns in one.turn_advantages.items():
        assert other.turn_advantages[name] == pytest.approx(turns)


@given(
    batches(), st.lists(st.tuples(st.integers(0, 2), st.sampled_from(FAULTS), st.integers(0, 99)), max_size=5)
)
def test_infrastructure_faults_change_no_turn_advantage(
    batch: list[Trajectory], faults: list[tuple[int, Outcome, int]]
) -> None:
    injected = list(batch)
    for number, (group, outcome, place) in enumerate(faults):
        fault = rollout(f"fault{number}", 0.0, [9.0, -9.0, 9.0], group_id=f"g{group}")
        fault = dataclasses.replace(fault, outcome=outcome, reward=None)
        injected.insert(place % (len(injected) + 1), fault)
    before, after = compute_advantages(batch, STEP_WISE), compute_advantages(injected, STEP_WISE)
    assert after.advantages == before.advantages
    assert after.turn_advantages == before.turn_advantages
    settings = TrainSettings(algorithm=STEP_WISE)
    _, plain = to_samples(batch, settings, lambda t: False)
    _, samples = to_samples(injected, settings, lambda t: False)
    assert [s.advantage.tolist() for s in samples] == [s.advantage.tolist() for s in plain]


@given(batches())
def test_each_token_has_the_advantage_of_its_turn(batch: list[Trajectory]) -> None:
    credit, samples = to_samples(batch, TrainSettings(algorithm=STEP_WISE), lambda t: False)
    for sample in samples:
        turns = credit.turn_advantages[sample.rollout_id]
        for token, weight, advantage in zip(sample.tokens, sample.weight, sample.advantage, strict=True):
            assert advantage == (np.float32(turns[int(token) - 10]) if weight else 0.0)


def test_equal_turns_have_zero_variance() -> None:
    same = [rollout("a", 1, [0.5, 1.0]), rollout("b", 0.5, [1.0, 1.5])]
    credit = compute_advantages(same, STEP_WISE)
    assert credit.turn_advantages == {"a": {0: 0.0, 1: 0.0}, "b": {0: 0.0, 1: 0.0}}
    assert credit.zero_variance_groups == ()  # the outcomes differ
    flat = [rollout("a", 1, [0.5]), rollout("b", 1, [0.5]), rollout("c", 1, [])]
    assert compute_advantages(flat, STEP_WISE).zero_variance_groups == ("g",)
    lively = [rollout("a", 1, [0.5]), rollout("b", 1, [0.0])]
    assert compute_advantages(lively, STEP_WISE).zero_variance_groups == ()


def test_masked_turns_stay_in_the_baseline_untrained() -> None:
    limit = dataclasses.replace(rollout("c", -1, [-1.0]), outcome=Outcome.TURN_LIMIT)
    batch = [rollout("a", 1, [1.0]), rollout("b", -1, [1.0]), limit]
    whole = compute_advantages(batch, STEP_WISE)
    masked = compute_advantages(batch, STEP_WISE, masked=["c"])
    assert masked.turn_advantages == {k: v for k, v in whole.turn_advantages.items() if k != "c"}
    assert masked.masked == ("c",)


@pytest.mark.parametrize("rewards", [{0: float("nan")}, {0: float("inf")}, {7: 1.0}])
def test_invalid_turn_rewards_are_refused(rewards: dict[int, float]) -> None:
    wrong = dataclasses.replace(rollout("a", 1, [0.0]), turn_rewards=rewards)
    with pytest.raises(TrainError, match="turn rewards"):
        compute_advantages([wrong, rollout("b", 1, [0.0])], STEP_WISE)


def with_score(name: str, outcome: float, score: float) -> Trajectory:
    final = FinalScore(
        score=score,
        acc=0.0,
        outcome_reward=outcome,
        prm_step_mean=0.0,
        prm_step_coef=0.0,
        progress_sum=0.0,
        progress_coef=0.0,
    )
    return dataclasses.replace(trajectory(name, reward=outcome), scores=Scores(final=final))


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_grpo_and_rloo_can_use_the_final_score(name: str) -> None:
    batch = [with_score("a", 1, 0.25), with_score("b", 1, -0.75), with_score("c", -1, -0.25)]
    settings = TrainSettings.model_validate({"algorithm": {"name": name, "reward": "final"}}).algorithm
    plain = TrainSettings.model_validate({"algorithm": {"name": name}}).algorithm
    as_rewards = [trajectory(t.rollout_id, reward=final_score(t)) for t in batch]
    assert compute_advantages(batch, settings).advantages == compute_advantages(as_rewards, plain).advantages
    with pytest.raises(TrainError, match="no final score"):
        compute_advantages([trajectory("a"), trajectory("b")], settings)
