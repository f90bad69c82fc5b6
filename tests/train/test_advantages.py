from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.train.algorithms import compute_advantages
from hone.train.algorithms.cispo import CispoSettings
from hone.train.algorithms.contract import AlgorithmSettings
from hone.train.algorithms.dapo import DapoSettings, overlong_penalty
from hone.train.algorithms.dr_grpo import DrGrpoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.gspo import GspoSettings
from hone.train.algorithms.opo import OpoSettings
from hone.train.algorithms.reinforce_pp import ReinforcePPSettings
from hone.train.algorithms.rloo import RlooSettings
from hone.train.algorithms.step_wise import StepWiseSettings
from hone.train.errors import TrainError
from hone.types import TokenTree, Trajectory
from tests.train.trajectories import rendered, sampled, trajectory

FAULTS = [o for o, rule in OUTCOME_RULES.items() if rule.fault is Fault.INFRASTRUCTURE]
ALGORITHMS: list[AlgorithmSettings] = [
    GrpoSettings(),
    GrpoSettings(normalise_std=False),
    RlooSettings(),
    DrGrpoSettings(),
    DapoSettings(overlong_tokens=2, overlong_cache=2),
    GspoSettings(),
    CispoSettings(),
    OpoSettings(),
]
ANY = [*ALGORITHMS, ReinforcePPSettings(), ReinforcePPSettings(group_baseline=True)]


def batch_of(*rewards: float, group_id: str = "g") -> list[Trajectory]:
    return [trajectory(f"{group_id}{i}", group_id=group_id, reward=r) for i, r in enumerate(rewards)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ALGORITHMS[0], [1.5, -0.5, -0.5, -0.5]),  # mean -0.5, sample standard deviation 1
        (ALGORITHMS[1], [1.5, -0.5, -0.5, -0.5]),
        (ALGORITHMS[2], [2.0, -2 / 3, -2 / 3, -2 / 3]),
    ],
)
def test_advantages_equal_those_of_the_papers(settings: AlgorithmSettings, expected: list[float]) -> None:
    credit = compute_advantages(batch_of(1, -1, -1, -1), settings)
    assert list(credit.advantages.values()) == pytest.approx(expected)


def test_advantages_are_scale_free_only_with_normalise_std() -> None:
    with_std, without = ALGORITHMS[:2]
    small, large = batch_of(0.1, 0.0, 0.0), batch_of(10, 0, 0)
    assert compute_advantages(small, with_std).advantages == pytest.approx(
        compute_advantages(large, with_std).advantages
    )
    assert compute_advantages(large, without).advantages["g0"] == pytest.approx(20 / 3)


rewards = st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=1, max_size=6)


@given(
    groups=st.lists(rewards, min_size=1, max_size=4),
    faults=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(FAULTS), st.integers(0, 99)), max_size=6),
    settings=st.sampled_from(ANY),
)
def test_infrastructure_faults_change_no_advantage(
    groups: list[list[float]], faults: list[tuple[int, Outcome, int]], settings: AlgorithmSettings
) -> None:
    clean = [t for i, group in enumerate(groups) for t in batch_of(*group, group_id=f"g{i}")]
    injected = list(clean)
    for number, (group, outcome, place) in enumerate(faults):
        fault = trajectory(f"fault{number}", group_id=f"g{group}", outcome=outcome)
        injected.insert(place % (len(injected) + 1), fault)
    before, after = compute_advantages(clean, settings), compute_advantages(injected, settings)
    assert after.advantages == before.advantages
    assert after.zero_variance_groups == before.zero_variance_groups or set(
        after.zero_variance_groups
    ) == set(before.zero_variance_groups)
    assert sorted(after.excluded) == sorted(f"fault{i}" for i in range(len(faults)))
    assert after.groups == len(groups)


@given(groups=st.lists(rewards, min_size=1, max_size=4), settings=st.sampled_from(ALGORITHMS))
def test_groups_are_separated_by_id_in_any_order(
    groups: list[list[float]], settings: AlgorithmSettings
) -> None:
    batches = [batch_of(*group, group_id=f"g{i}") for i, group in enumerate(groups)]
    mixed = [t for batch in batches for t in batch]
    np.random.default_rng(0).shuffle(mixed)  # type: ignore[arg-type]
    credit = compute_advantages(mixed, settings)
    for batch in batches:
        alone = compute_advantages(batch, settings).advantages
        assert {t.rollout_id: credit.advantages[t.rollout_id] for t in batch} == pytest.approx(alone)
        assert sum(alone.values()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("settings", ALGORITHMS)
def test_zero_variance_groups_get_zero_advantage_and_are_reported(settings: AlgorithmSettings) -> None:
    batch = batch_of(1, 1, 1) + batch_of(1, -1, group_id="h") + batch_of(0.1 + 0.2, 0.3, group_id="i")
    credit = compute_advantages([*batch, trajectory("single", group_id="j")], settings)
    assert credit.zero_variance_groups == ("g", "i", "j")
    assert {credit.advantages[f"g{i}"] for i in range(3)} == {0.0}
    assert credit.advantages["single"] == 0.0
    assert credit.advantages["h0"] > 0


def test_masked_rollout_stays_in_the_baseline_untrained() -> None:
    limit = trajectory("g2", outcome=Outcome.TURN_LIMIT)
    batch = [*batch_of(1, -1), limit]
    whole, masked = (
        compute_advantages(batch, ALGORITHMS[0]),
        compute_advantages(batch, ALGORITHMS[0], masked=["g2"]),
    )
    assert masked.masked == ("g2",)
    assert masked.advantages == {k: v for k, v in whole.advantages.items() if k != "g2"}


@pytest.mark.parametrize("outcome", [Outcome.UNRESOLVED, Outcome.TAMPERED, Outcome.FORMAT_LIMIT])
def test_only_maskable_outcomes_can_be_masked(outcome: Outcome) -> None:
    with pytest.raises(TrainError, match="cannot be masked"):
        compute_advantages([*batch_of(1), trajectory("x", outcome=outcome)], ALGORITHMS[0], masked=["x"])


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(TrainError, match="finite reward"):
        compute_advantages(batch_of(1, reward), ALGORITHMS[0])


def test_duplicate_rollout_is_refused() -> None:
    with pytest.raises(TrainError, match="twice"):
        compute_advantages(batch_of(1, -1) + batch_of(1), ALGORITHMS[0])


def test_almost_equal_rewards_get_small_advantages() -> None:
    credit = compute_advantages(batch_of(0.5, 0.5, 0.5, 0.50001), GrpoSettings())
    assert max(map(abs, credit.advantages.values())) < 0.01
    apart = compute_advantages(batch_of(0.5, 0.5, 0.5, 0.51), GrpoSettings())
    assert apart.advantages["g3"] == pytest.approx(1.5)


def long(made: Trajectory, tokens: int) -> Trajectory:
    return replace(made, tree=TokenTree([rendered(None, [1]), sampled(0, [2] * tokens)]))


def test_opo_weights_its_baseline_by_sampled_tokens() -> None:
    first, second = batch_of(1, -1)
    credit = compute_advantages([long(first, 30), long(second, 10)], OpoSettings())
    assert credit.advantages == pytest.approx({"g0": 0.5, "g1": -1.5})


def test_reinforce_pp_normalises_over_the_tokens_of_the_batch() -> None:
    groups = {"g": ([1.0, 0.0], [3, 5]), "h": ([0.25, 0.5, 0.5], [1, 9, 2])}
    batch = [
        long(t, n)
        for name, (own, tokens) in groups.items()
        for t, n in zip(batch_of(*own, group_id=name), tokens, strict=True)
    ]
    for group_baseline in (False, True):
        values = [
            reward - (np.mean(own) if group_baseline else 0) for own, _ in groups.values() for reward in own
        ]
        spread = np.repeat(values, [n for _, tokens in groups.values() for n in tokens])
        expected = (np.array(values) - spread.mean()) / spread.std()
        credit = compute_advantages(batch, ReinforcePPSettings(group_baseline=group_baseline))
        assert list(credit.advantages.values()) == pytest.approx(expected.tolist())
    same = compute_advantages(batch_of(0.1, 0.1, 0.1) + batch_of(0.1, group_id="h"), ReinforcePPSettings())
    assert same.zero_variance_groups == ("g", "h")


def test_dapo_penalises_overlong_rollouts() -> None:
    lengths = np.array([0, 80, 85, 90, 99, 100, 300], np.float64)
    assert overlong_penalty(lengths, 100, 20).tolist() == [0, 0, -0.25, -0.5, -0.95, -1, -1]
    short, overlong = batch_of(1, 1)
    credit = compute_advantages(
        [long(short, 80), long(overlong, 90)], DapoSettings(overlong_tokens=100, overlong_cache=20)
    )
    assert credit.advantages["g0"] == pytest.approx(1 / np.sqrt(2))
    assert credit.zero_variance_groups == ()
    with pytest.raises(ValueError, match="overlong_cache is 200, more than overlong_tokens"):
        DapoSettings(overlong_tokens=100, overlong_cache=200)


def test_algorithm_is_named_with_the_reward_that_it_uses() -> None:
    assert StepWiseSettings().named == "step_wise"
    assert RlooSettings(reward="final").named == "rloo on the final reward"
