"""Whether stored tokens are those of a tokenizer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hone.policy.tiny import make_tokenizer
from hone.policy.vocabulary import knows_tokens
from hone.types import TokenTree, Trajectory
from tests.policy.conftest import SETTINGS, TEXTS
from tests.train.trajectories import rendered, sampled, trajectory

MESSAGES = (
    {"role": "system", "content": "You fix bugs.\n"},
    {"role": "user", "content": "`total_price` is wrong: héllo"},
)


def said_with(tokenizer, renderer) -> Trajectory:
    prompt = renderer.render_ids(list(MESSAGES), add_generation_prompt=True)
    reply = tokenizer.encode("return total", add_special_tokens=False)
    tree = TokenTree([rendered(None, prompt), sampled(0, reply)])
    return replace(trajectory("r", tree=tree), messages=MESSAGES)


@pytest.fixture(scope="module")
def other():
    """A tokenizer of the same family and size, trained on other texts."""
    return make_tokenizer([text[::-1] for text in TEXTS], SETTINGS)


def test_own_tokens_are_recognised(tokenizer, renderer):
    assert knows_tokens(tokenizer, said_with(tokenizer, renderer))


def test_tokens_of_another_tokenizer_are_not(tokenizer, renderer, other):
    assert not knows_tokens(other, said_with(tokenizer, renderer))


def test_ids_beyond_the_vocabulary_are_not(tokenizer, renderer):
    known = said_with(tokenizer, renderer)
    tree = TokenTree([known.tree.nodes[0], sampled(0, [len(tokenizer)])])
    assert not knows_tokens(tokenizer, replace(known, tree=tree))
