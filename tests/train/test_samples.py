from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.train.samples import build_samples, tree_samples
from hone.types import Sample, TokenTree
from tests.train.examples import rendered, sampled, trajectory


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """A rendered root and up to twelve nodes below it, anywhere, rendered or sampled, possibly empty."""
    tree = TokenTree([rendered(None, [0, 0])])
    token = 1
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(tree.nodes) - 1))
        tokens = list(range(token, token + draw(st.integers(0, 4))))
        token += len(tokens)
        make = sampled if draw(st.booleans()) else rendered
        tree.append(make(parent, tokens))
    return tree


def samples_of(tree: TokenTree) -> list[Sample]:
    return tree_samples(tree, rollout_id="r", group_id="g", advantage=0.5)


@given(trees())
def test_every_sampled_token_is_trained_exactly_once_over_all_branches(tree: TokenTree) -> None:
    trained = [int(t) for s in samples_of(tree) for t in s.tokens[s.weight > 0]]
    drawn = [int(t) for node in tree.nodes if node.sampled for t in node.tokens]
    assert sorted(trained) == sorted(drawn)  # tokens are numbered, so this counts occurrences


@given(trees())
def test_every_array_of_a_sample_has_the_length_of_its_branch(tree: TokenTree) -> None:
    branches = [np.concatenate([tree.nodes[i].tokens for i in branch]).tolist() for branch in tree.branches()]
    for sample in samples_of(tree):
        assert sample.tokens.tolist() in branches
        arrays = (sample.weight, sample.advantage, sample.logprobs, sample.version)
        assert {len(array) for array in arrays} == {len(sample.tokens)}


@given(trees())
def test_a_trained_token_keeps_its_engine_numbers_and_its_context(tree: TokenTree) -> None:
    known = {
        int(token): (float(logprob), tree.tokens(index)[: -len(node.tokens) or None].tolist(), node)
        for index, node in enumerate(tree.nodes)
        if node.sampled
        for token, logprob in zip(node.tokens, node.logprobs, strict=True)
    }
    for sample in samples_of(tree):
        for at in np.flatnonzero(sample.weight):
            logprob, before, node = known[int(sample.tokens[at])]
            inside = int(np.flatnonzero(node.tokens == sample.tokens[at])[0])
            assert sample.logprobs[at] == np.float32(logprob)
            assert sample.version[at] == 0
            assert sample.tokens[: at - inside].tolist() == before
            assert sample.advantage[at] == 0.5
        untrained = sample.weight == 0
        assert not sample.advantage[untrained].any()


def test_the_first_branch_that_holds_a_token_trains_it() -> None:
    tree = TokenTree(
        [
            rendered(None, [1, 2]),
            sampled(0, [3, 4]),
            rendered(1, [5]),
            sampled(2, [6]),
            rendered(1, [7]),
            sampled(4, [8]),
        ]
    )
    first, second = samples_of(tree)
    assert (first.tokens.tolist(), first.weight.tolist()) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])
    assert (second.tokens.tolist(), second.weight.tolist()) == ([1, 2, 3, 4, 7, 8], [0, 0, 0, 0, 0, 1])


def test_a_sampled_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="first token"):
        samples_of(TokenTree([sampled(None, [1, 2])]))


def test_only_rollouts_with_an_advantage_give_samples() -> None:
    batch = [trajectory("a"), trajectory("b"), trajectory("empty", tree=TokenTree([rendered(None, [1])]))]
    samples = build_samples(batch, {"b": -1.0, "empty": 1.0})
    assert [s.rollout_id for s in samples] == ["b"]
    assert samples[0].advantage.tolist() == [0, 0, 0, -1, -1]
