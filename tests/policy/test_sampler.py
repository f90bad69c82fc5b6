"""Draws: support and frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.policy.batch import RowSampler, uniforms
from hone.policy.engine import Sampling

CPU = torch.device("cpu")


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(2, 50),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, 60),
    temperature=st.floats(0.2, 3.0),
    point=st.floats(0, 1 - 2**-52),
)
def test_draws_stay_within_top_k_and_top_p(seed, size, top_p, top_k, temperature, point):
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * 3
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    tokens, logprobs = RowSampler([sampling], CPU).draw(logits, [point])
    expected = torch.log_softmax(logits[0] / temperature, dim=-1)
    assert logprobs[0] == pytest.approx(expected[tokens[0]].item(), abs=1e-5)
    rank = int((expected > expected[tokens[0]]).sum())
    likelier = expected[expected > expected[tokens[0]]].double().exp().sum().item()
    assert rank < (top_k or size)
    assert likelier < top_p + 1e-6


def test_draws_follow_the_truncated_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))
    count = 20_000
    cases = {
        (1.0, 0): [0.5, 0.25, 0.15, 0.1],
        (0.7, 0): [2 / 3, 1 / 3, 0, 0],
        (1.0, 3): [5 / 9, 2.5 / 9, 1.5 / 9, 0],
    }
    for (top_p, top_k), expected in cases.items():
        sampler = RowSampler([Sampling(top_p=top_p, top_k=top_k)] * count, CPU)
        tokens, _ = sampler.draw(logits.expand(count, 4), uniforms(1, count))
        shares = np.bincount(tokens, minlength=4) / count
        assert shares == pytest.approx(expected, abs=0.012)
        assert not shares[np.asarray(expected) == 0].any()


@pytest.mark.parametrize("point", [0.0, 0.5, 1 - 2**-52])
def test_zero_probability_token_is_never_drawn(point):
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    assert RowSampler([Sampling()], CPU).draw(logits, [point])[0][0] in (1, 3)


def test_rows_keep_their_own_settings():
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    samplings = [Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=2.0)]
    tokens, logprobs = RowSampler(samplings, CPU).draw(logits, [0.0, 0.0, 0.0])
    assert tokens == [2, 2, 0]
    plain, soft = torch.log_softmax(logits[0], -1), torch.log_softmax(logits[0] / 2, -1)
    assert logprobs == pytest.approx([plain[2].item(), plain[2].item(), soft[0].item()])
