from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.train.algorithms import Advantages
from hone.train.errors import TrainError
from hone.train.samples import build_samples, tree_samples
from hone.types import Sample, TokenTree, Trajectory
from tests.train.trajectories import rendered, sampled, trajectory, with_turns


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


def credit_of(advantages: dict[str, float], turns: dict[str, dict[int, float]] | None = None) -> Advantages:
    return Advantages(
        advantages=advantages,
        masked=(),
        excluded=(),
        zero_variance_groups=(),
        groups=1,
        turn_advantages=turns or {},
    )


def samples_of(tree: TokenTree) -> list[Sample]:
    return tree_samples(tree, rollout_id="r", group_id="g", advantage=0.5)


@given(trees())
def test_every_sampled_token_is_trained_exactly_once(tree: TokenTree) -> None:
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
def test_trained_token_keeps_its_logprob_version_and_context(tree: TokenTree) -> None:
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


def test_sampled_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="first token"):
        samples_of(TokenTree([sampled(None, [1, 2])]))


def test_only_rollouts_with_an_advantage_give_samples() -> None:
    batch = [trajectory("a"), trajectory("b"), trajectory("empty", tree=TokenTree([rendered(None, [1])]))]
    samples = build_samples(batch, credit_of({"b": -1.0, "empty": 1.0}))
    assert [s.rollout_id for s in samples] == ["b"]
    assert samples[0].advantage.tolist() == [0, 0, 0, -1, -1]


@given(trees(), st.data())
def test_every_token_has_the_advantage_of_its_node(tree: TokenTree, data: st.DataObject) -> None:
    drawn = [i for i, node in enumerate(tree.nodes) if node.sampled]
    chosen = data.draw(st.dictionaries(st.sampled_from(drawn), st.floats(-2, 2)) if drawn else st.just({}))
    made = tree_samples(tree, rollout_id="r", group_id="g", advantage=0.5, node_advantages=chosen)
    plain = samples_of(tree)
    assert [s.weight.tolist() for s in made] == [s.weight.tolist() for s in plain]  # credit moves no mask
    expected = {int(t): chosen.get(i, 0.5) for i in drawn for t in tree.nodes[i].tokens}
    for sample in made:
        for at in np.flatnonzero(sample.weight):
            assert sample.advantage[at] == np.float32(expected[int(sample.tokens[at])])
        assert not sample.advantage[sample.weight == 0].any()


def two_turns(*nodes: int | None) -> Trajectory:
    tree = TokenTree(
        [
            rendered(None, [1]),
            sampled(0, [2, 3]),
            rendered(1, [4]),
            sampled(2, [5]),
            rendered(1, [6]),  # a side call, on a branch of its own
            sampled(4, [7]),
        ]
    )
    return with_turns(trajectory("a", tree=tree), nodes)


def test_auxiliary_calls_get_the_advantage_of_the_rollout() -> None:
    credit = credit_of({"a": 0.5}, {"a": {0: -1.0, 1: 2.0}})
    main, side = build_samples([two_turns(1, 3)], credit)
    assert main.advantage.tolist() == [0, -1, -1, 0, 2]
    assert side.advantage.tolist() == [0, 0, 0, 0, 0.5]
    assert side.weight.tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [((1, 1), "to another turn, too"), ((1, 2), "not a sampled node"), ((1, 9), "not a sampled node")],
)
def test_turns_that_do_not_fit_their_tree_are_refused(nodes: tuple[int, int], said: str) -> None:
    with pytest.raises(TrainError, match=said):
        build_samples([two_turns(*nodes)], credit_of({"a": 0.5}, {"a": {0: -1.0, 1: 2.0}}))
