"""A training of real verl whose rollouts rewrite their history, and some of which fail.

The agent is `in_verl/rewriter`. Each check compares verl's own batch with the stored rollouts.
"""

from __future__ import annotations

from collections import Counter

import pytest

from hone.rollout.rewards import is_infrastructure_fault
from hone.train.algorithms.advantages import compute_advantages
from hone.train.algorithms.grpo import GrpoSettings
from tests.integrations.verl.training import HERE, REAL_VERL, Training, VerlRow, inject_faults, recipe, train

pytestmark = REAL_VERL
STEPS, GROUPS, MEMBERS = 3, 4, 4
FAULTS = [
    *((0, member, 0) for member in (0, 1, 2)),  # one of the group is left
    *((1, member, 0) for member in range(MEMBERS)),  # none is left
    *((5, 1, 1), (6, 3, 0), (8, 2, 1), (9, 0, 1)),  # also after the first reply
]
ALGORITHM = GrpoSettings(normalise_std=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("verl")
    inject_faults(folder, FAULTS)
    settings = recipe(
        folder,
        STEPS,
        agent={"kind": "blackbox", "program": str(HERE / "in_verl" / "rewriter.toml")},
        rollout={"group_size": MEMBERS, "concurrent_episodes": 8, "attempts": 1},
    )
    settings["train"]["algorithm"] = {"name": "grpo", "normalise_std": ALGORITHM.normalise_std}
    return train(folder, settings)


def of_rollouts(rows: list[VerlRow]) -> dict[str, list[VerlRow]]:
    found: dict[str, list[VerlRow]] = {}
    for row in rows:
        found.setdefault(row.rollout, []).append(row)
    return found


def test_rewritten_rollout_has_several_rows_with_its_reward(done: Training) -> None:
    rollouts = of_rollouts(done.rows)

    forked = [name for name, rows in rollouts.items() if len(rows) > 1]
    assert forked
    for name, rows in rollouts.items():
        assert {sum(row.rm_scores) for row in rows} == {done.stored[name].reward}


def test_each_sampled_token_is_trained_in_one_row(done: Training) -> None:
    for name, rows in of_rollouts(done.rows).items():
        trained = [
            tuple(row.prompt + row.response[: position + 1])  # a token is the path that ends with it
            for row in rows
            for position, mask in enumerate(row.response_mask)
            if mask
        ]
        assert len(set(trained)) == len(trained)
        alone = _rewarded(done)[_group(name)] == 1
        assert len(trained) == (0 if alone else done.stored[name].tree.sampled_tokens)


def test_advantages_are_hones_without_the_faults(done: Training) -> None:
    expected = compute_advantages(list(done.stored.values()), ALGORITHM).advantages

    compared = Counter[bool]()
    for row in done.rows:
        advantage = expected[done.stored[row.rollout].rollout_id]
        compared[advantage != 0] += 1
        for mask, own in zip(row.response_mask, row.advantages, strict=True):
            assert own == pytest.approx(advantage * mask, abs=1e-6)
    assert compared[True]


def test_fault_is_a_masked_row_of_verls_own(done: Training) -> None:
    failed = [name for name, each in done.stored.items() if is_infrastructure_fault(each.outcome)]

    assert len(done.stored) == STEPS * GROUPS * MEMBERS
    assert len(failed) == len(FAULTS)
    assert not {row.rollout for row in done.rows} & set(failed)
    groups = {_group(row.rollout) for row in done.rows}
    for batch in done.batches:
        assert len(batch) % (GROUPS * MEMBERS) == 0
        for row in batch:
            if row.padding:
                assert _group(row.rollout) not in groups
                assert not any(row.response_mask + row.rm_scores + row.advantages)


def test_verl_computes_the_logprobs_of_every_row(done: Training) -> None:
    assert len(done.batches) == len(done.rewards) == STEPS
    assert max(row.gap for row in done.rows) <= 1e-4
    assert max(row.stray for row in done.rows) == 0


def _group(rollout: str) -> str:
    return rollout.rpartition("-")[0]


def _rewarded(done: Training) -> Counter[str]:
    """Return the number of rollouts with a reward, per group."""
    return Counter(_group(name) for name, each in done.stored.items() if each.reward is not None)
