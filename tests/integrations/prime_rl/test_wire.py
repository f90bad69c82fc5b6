"""Micro-batches for prime-rl's trainer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.integrations.prime_rl.wire import MicroBatch, decode, encode, micro_batch_grid
from hone.train.batches import TrainRow
from hone.train.errors import TrainError
from hone.train.loss import token_scales
from hone.types import Sample
from tests.train.trajectories import multi_turn_samples


def rows_of(samples: list[Sample]) -> list[TrainRow]:
    scales = token_scales(samples, "trajectory")
    return [
        TrainRow(sample=sample, scale=scale, old_logprobs=sample.logprobs - 0.5)
        for sample, scale in zip(samples, scales, strict=True)
    ]


def grid(rows: list[TrainRow], *, seq_len: int = 96, data_ranks: int = 1) -> list[list[MicroBatch]]:
    return micro_batch_grid(rows, seq_len=seq_len, data_ranks=data_ranks, temperature=0.7)


@given(
    count=st.integers(1, 12), seed=st.integers(0, 99), ranks=st.integers(1, 4), seq_len=st.integers(72, 300)
)
def test_every_trained_token_is_sent_once_with_its_credit(
    count: int, seed: int, ranks: int, seq_len: int
) -> None:
    rows = rows_of(multi_turn_samples(count, seed=seed))
    sent = grid(rows, seq_len=seq_len, data_ranks=ranks)
    assert len(sent) == ranks
    assert len({len(each) for each in sent}) == 1
    trained = sum(len(row.trained) for row in rows)
    found: list[tuple[float, ...]] = []
    for each in (micro_batch for rank in sent for micro_batch in rank):
        assert len(each.input_ids) == sum(each.sequence_lengths) <= seq_len
        assert each.rl_weights is not None
        assert set(each.temperatures) == {0.7}
        columns = (each.input_ids, each.advantages, each.inference_logprobs, each.rl_weights)
        entries = zip(each.loss_mask, each.position_ids, *columns, strict=True)
        found += [(at, *values) for mask, at, *values in entries if mask]
    expected = [
        (
            int(at),
            float(row.sample.tokens[at]),
            float(row.sample.advantage[at]),
            float(row.sample.logprobs[at] - 0.5),
            float(row.scale[at]) * trained,
        )
        for row in rows
        for at in row.trained
    ]
    assert sorted(found) == sorted(expected)


def test_equal_rows_give_equal_bytes_that_read_back() -> None:
    one, two = (grid(rows_of(multi_turn_samples(7)))[0] for _ in range(2))
    assert encode(one) == encode(two)
    assert decode(encode(one)) == one


def test_row_longer_than_a_micro_batch_is_refused() -> None:
    rows = rows_of(multi_turn_samples(3))
    longest = max(row.length for row in rows)
    grid(rows, seq_len=longest)
    with pytest.raises(TrainError, match=rf"branch of {longest} tokens, and train\.prime_rl\.seq_len is"):
        grid(rows, seq_len=longest - 1)


def test_row_with_recorded_experts_is_refused() -> None:
    (row,) = rows_of(multi_turn_samples(1))
    routing = np.zeros((len(row.sample.tokens), 2, 1), np.int8)
    with pytest.raises(TrainError, match=r"set train\.routing_replay = false"):
        grid([replace(row, sample=replace(row.sample, routing=routing))])
