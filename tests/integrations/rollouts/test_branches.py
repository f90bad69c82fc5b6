"""Rows of a trajectory for another trainer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from hone.integrations.rollouts.branches import FILLER, Branch, branches
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.types import TokenTree
from tests.integrations.rollouts.examples import forked_tree, rendered, sampled, trajectory, trees


def lists(branch: Branch) -> tuple[list[int], list[int], list[int]]:
    return branch.prompt_ids.tolist(), branch.response_ids.tolist(), branch.response_mask.tolist()


def test_fork_gives_two_rows_that_share_no_trained_token() -> None:
    first, second = branches(trajectory(forked_tree()))

    assert lists(first) == ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    assert first.logprobs.tolist() == [-4 / 64, -5 / 64, 0, -7 / 64]
    assert first.versions.tolist() == [5, 5, -1, 6]
    assert (first.min_version, first.max_version) == (5, 6)
    assert lists(second) == ([1, 2, 3, 4, 7, 8], [9, 10], [1, 1])
    assert (second.min_version, second.max_version) == (7, 7)


def test_tokens_after_the_last_reply_are_left_out() -> None:
    tree = TokenTree([rendered(None, [1]), sampled(0, [2, 3]), rendered(1, [4, 5])])

    (row,) = branches(trajectory(tree))

    assert lists(row) == ([1], [2, 3], [1, 1])


@given(tree=trees())
def test_each_sampled_token_is_trained_once_over_the_rows(tree: TokenTree) -> None:
    rows = branches(trajectory(tree))

    trained = Counter[tuple[int, ...]]()  # a token with all that stands before it
    for row in rows:
        whole = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
        start = len(row.prompt_ids)
        assert len(row.response_ids) == len(row.response_mask) == len(row.logprobs) == len(row.versions) > 0
        assert not row.logprobs[row.response_mask == 0].any()
        assert row.prompt_ids.size
        trained.update(tuple(whole[: start + i + 1]) for i in np.flatnonzero(row.response_mask))
    expected = Counter[tuple[int, ...]]()
    for index, node in enumerate(tree.nodes):
        if node.sampled:
            path = tree.tokens(index).tolist()
            before = len(path) - len(node.tokens)
            expected.update(tuple(path[: before + i + 1]) for i in range(len(node.tokens)))
    assert trained == expected
    assert sum(trained.values()) == tree.sampled_tokens


@pytest.mark.parametrize("outcome", [o for o in Outcome if OUTCOME_RULES[o].fault is Fault.INFRASTRUCTURE])
def test_infrastructure_fault_is_one_row_that_trains_nothing(outcome: Outcome) -> None:
    (row,) = branches(trajectory(forked_tree(), outcome))

    assert lists(row) == ([FILLER], [FILLER], [0])
    assert row.logprobs.tolist() == [0.0]
    assert (row.min_version, row.max_version) == (None, None)


def test_rollout_without_a_sampled_token_is_one_masked_row() -> None:
    (row,) = branches(trajectory(TokenTree([rendered(None, [1, 2])]), Outcome.CONTEXT_LIMIT))

    assert lists(row) == ([FILLER], [FILLER], [0])


def test_masked_rollout_keeps_its_rows_and_trains_none() -> None:
    rows = branches(trajectory(forked_tree(), Outcome.TURN_LIMIT), masked=True)

    assert [row.response_ids.tolist() for row in rows] == [[3, 4, 5, 6], [9, 10]]
    assert not any(row.response_mask.any() or row.logprobs.any() for row in rows)
    assert [row.max_version for row in rows] == [6, 7]
