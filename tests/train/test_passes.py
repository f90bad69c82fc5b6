"""Plans of forward passes: within their budget, by predicted cost, for any order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.train.forest import Branch
from hone.train.passes import CostModel, Kind, balance, plan_passes
from tests.train.test_forest import branches_

COST = CostModel(hidden=192, layers=3, attention_width=192, layer_parameters=400_000)
SHARED = np.arange(600, dtype=np.int32)


def branch(tokens: np.ndarray) -> Branch:
    return Branch(tokens.astype(np.int32), np.array([len(tokens) - 1]))


def side_calls(turns: int, prompt: int = 100) -> list[Branch]:
    """A conversation of 60 tokens a turn, with a side call of 20 tokens after each."""
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 500, prompt)
    rows: list[Branch] = []
    for _ in range(turns):
        trunk = np.concatenate([trunk, rng.integers(0, 500, 60)])
        rows.append(branch(np.concatenate([trunk, rng.integers(0, 500, 20)])))
    return rows


@given(branches_, st.integers(4, 30), st.sampled_from(["off", "mask"]), st.integers(1, 3))
def test_passes_hold_each_row_once_within_the_budget(
    branches: list[Branch], budget: int, kind: Kind, parts: int
) -> None:
    plan = plan_passes(branches, tree=kind, budget_tokens=budget, cost=COST, parts=parts)
    assert sorted(row for each in plan for row in each.rows) == list(range(len(branches)))
    for each in plan:
        assert len(each.forest.tokens) <= budget or len(each.rows) == 1


@given(branches_, st.randoms(), st.integers(1, 3))
def test_a_plan_does_not_depend_on_the_order_of_rows(
    branches: list[Branch], random: np.random.Generator, parts: int
) -> None:
    order = list(range(len(branches)))
    random.shuffle(order)
    plans = [
        plan_passes(rows, tree="auto", budget_tokens=12, cost=COST, parts=parts)
        for rows in (branches, [branches[i] for i in order])
    ]
    tokens = [[(each.kind, each.cost, each.forest.tokens.tolist()) for each in plan] for plan in plans]
    assert tokens[0] == tokens[1]


def test_rows_that_share_little_are_packed_or_masked() -> None:
    rows = [branch(np.random.default_rng(i).integers(0, 500, 200)) for i in range(8)]
    plan = plan_passes(rows, tree="auto", budget_tokens=1000, cost=COST)
    assert {each.kind for each in plan} == {"off"}


def test_side_calls_are_computed_in_one_masked_pass() -> None:
    plan = plan_passes(side_calls(12), tree="auto", budget_tokens=4000, cost=COST)
    assert [each.kind for each in plan] == ["mask"]
    assert plan[0].forest.branch_tokens > 5 * len(plan[0].forest.tokens)


def test_a_prefix_above_the_budget_is_computed_depth_first() -> None:
    rows = side_calls(12, prompt=3000)
    plan = plan_passes(rows, tree="auto", budget_tokens=2000, cost=COST)
    assert [each.kind for each in plan] == ["depth_first"]
    shallow = plan_passes(rows, tree="auto", budget_tokens=2000, cost=COST, may_go_deep=False)
    assert "depth_first" not in {each.kind for each in shallow}


@pytest.mark.parametrize("kind", ["off", "mask", "depth_first", "auto"])
def test_passes_are_enough_for_all_workers(kind: Kind) -> None:
    rows = [branch(np.append(SHARED, [i, i])) for i in range(6)] + side_calls(6)
    plan = plan_passes(rows, tree=kind, budget_tokens=10_000, cost=COST, parts=2)
    shares = [sum(plan[i].cost for i in part) for part in balance(plan, 2)]
    assert min(shares) > 0.6 * max(shares)
