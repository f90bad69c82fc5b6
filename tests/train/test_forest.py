"""Prefix trees over branches: every branch is a path, every token is computed once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.train.forest import Branch, Forest, build_forest


@st.composite
def branch(draw: st.DrawFn) -> Branch:
    tokens = draw(st.lists(st.integers(0, 2), min_size=2, max_size=9))
    trained = draw(st.sets(st.integers(1, len(tokens) - 1), min_size=1))
    return Branch(np.array(tokens, np.int32), np.array(sorted(trained), np.int64))


branches_ = st.lists(branch(), min_size=1, max_size=8)


def path(forest: Forest, flat: int) -> list[int]:
    """The indices from the root to `flat`, by the parents of segments."""
    segment = int(np.searchsorted(forest.starts, flat, side="right")) - 1
    result = list(range(forest.starts[segment], flat + 1))
    while (segment := int(forest.parents[segment])) >= 0:
        result = [*range(forest.starts[segment], forest.ends[segment]), *result]
    return result


def prefixes(branches: list[Branch]) -> set[tuple[int, ...]]:
    return {tuple(b.tokens[: n + 1]) for b in branches for n in range(len(b.tokens))}


@given(branches_)
def test_every_branch_is_a_path_from_a_root(branches: list[Branch]) -> None:
    forest = build_forest(branches, share=True)
    for row, predictors in zip(branches, forest.predictors, strict=True):
        for at, predictor in zip(row.trained, predictors, strict=True):
            context = path(forest, int(predictor))
            assert forest.tokens[context].tolist() == row.tokens[:at].tolist()
            assert forest.position_ids[context].tolist() == list(range(at))


@given(branches_)
def test_each_shared_prefix_has_its_tokens_once(branches: list[Branch]) -> None:
    forest = build_forest(branches, share=True)
    paths = [tuple(forest.tokens[path(forest, i)]) for i in range(len(forest.tokens))]
    assert len(paths) == len(set(paths))
    assert set(paths) == prefixes(branches)
    assert forest.branch_tokens == sum(len(b.tokens) for b in branches)


@given(branches_)
def test_without_sharing_each_branch_is_a_root(branches: list[Branch]) -> None:
    forest = build_forest(branches, share=False)
    assert (forest.parents == -1).all()
    assert len(forest.starts) == len(branches)
    assert len(forest.tokens) == forest.branch_tokens
    rows = sorted(b.tokens.tolist() for b in branches)
    assert [forest.tokens[a:b].tolist() for a, b in zip(forest.starts, forest.ends, strict=True)] == rows


@given(branches_, st.booleans())
def test_subtree_ends_give_the_visible_tokens(branches: list[Branch], share: bool) -> None:
    forest = build_forest(branches, share=share)
    segment = np.searchsorted(forest.starts, np.arange(len(forest.tokens)), side="right") - 1
    ends = forest.subtree_ends[segment]
    for query in range(len(forest.tokens)):
        assert [k for k in range(query + 1) if query < ends[k]] == path(forest, query)
    assert forest.visible_pairs == sum(len(path(forest, q)) for q in range(len(forest.tokens)))


@given(branches_)
def test_segments_are_as_long_as_possible(branches: list[Branch]) -> None:
    forest = build_forest(branches, share=True)
    children = np.bincount(forest.parents[forest.parents >= 0], minlength=len(forest.starts))
    assert (children != 1).all()


@given(branches_, st.booleans(), st.randoms())
def test_the_order_of_branches_does_not_matter(
    branches: list[Branch], share: bool, random: np.random.Generator
) -> None:
    order = list(range(len(branches)))
    random.shuffle(order)
    one, other = build_forest(branches, share=share), build_forest([branches[i] for i in order], share=share)
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    if share:
        for at, index in enumerate(order):
            assert one.predictors[index].tolist() == other.predictors[at].tolist()


def test_the_example_of_the_docstring_holds() -> None:
    rows = [np.array([5, 6, 8, 9], np.int32), np.array([5, 6, 7], np.int32)]
    forest = build_forest([Branch(r, np.array([2, len(r) - 1])) for r in rows], share=True)
    assert forest.tokens.tolist() == [5, 6, 7, 8, 9]
    assert forest.position_ids.tolist() == [0, 1, 2, 2, 3]
    assert (forest.starts.tolist(), forest.ends.tolist()) == ([0, 2, 3], [2, 3, 5])
    assert forest.parents.tolist() == [-1, 0, 0]
    assert [p.tolist() for p in forest.predictors] == [[1, 3], [1, 1]]
