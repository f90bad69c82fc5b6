"""Micro-batches as prime-rl's trainer reads them: MessagePack arrays whose order of fields is the contract.

Step N of prime-rl, counted from 1, trains weight version N - 1 of Hone into version N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.train.batches import TrainRow
from hone.train.errors import TrainError

try:
    import msgspec
except ModuleNotFoundError as error:
    raise TrainError(
        "train.learner = \"prime_rl\" needs an extra: pip install 'hone-rl[prime-rl]'"
    ) from error

ENVIRONMENT = "hone"  # prime-rl groups its metrics by the name of an environment


class MicroBatch(msgspec.Struct, array_like=True, omit_defaults=True, kw_only=False):
    """Sequences packed one after another; every list but `sequence_lengths` and `seq_lens` has one entry per
    token. `loss_mask` marks the trained tokens, `rl_weights` scales the loss of each."""

    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]  # of the token itself, not of the next one; 0 where it is not trained
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]
    ref_logprobs: None = None
    routed_experts: None = None
    mm_kwargs: None = None
    mm_token_type_ids: None = None
    rl_weights: list[float] | None = None


@dataclass(slots=True, kw_only=True)
class _Bin:
    rows: list[int] = field(default_factory=list[int])
    tokens: int = 0


def micro_batch_grid(
    rows: Sequence[TrainRow], *, seq_len: int, data_ranks: int, temperature: float
) -> list[list[MicroBatch]]:
    """Return the micro-batches of each data rank, equally many, of at most `seq_len` tokens each.

    prime-rl divides the loss by the number N of trained tokens of all ranks, so a token of scale s has the
    weight s x N: the loss is Hone's sum of scale x loss. Equal rows give equal bytes. Ranks without enough
    rows get a copy of a micro-batch in which no token is trained.

    Raises TrainError for a row of more than `seq_len` tokens, without old log-probabilities, or with the
    experts of a mixture.
    """
    for row in rows:
        _require_sendable(row, seq_len)
    trained = sum(int(np.count_nonzero(row.scale[row.trained])) for row in rows)
    packed = [
        _micro_batch([rows[i] for i in each.rows], trained, temperature)
        for each in _pack([row.length for row in rows], seq_len)
    ]
    packed += [_untrained(packed[-1])] * (-len(packed) % data_ranks)
    return [packed[rank::data_ranks] for rank in range(data_ranks)]


def encode(micro_batches: Sequence[MicroBatch]) -> bytes:
    """Return the bytes of one data rank's micro-batches."""
    return msgspec.msgpack.encode(list(micro_batches))


def decode(data: bytes) -> list[MicroBatch]:
    """Return the micro-batches of `encode`."""
    return msgspec.msgpack.decode(data, type=list[MicroBatch])


def _pack(lengths: Sequence[int], seq_len: int) -> list[_Bin]:
    """Return bins of rows, first fit in decreasing length."""
    bins: list[_Bin] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = next((b for b in bins if b.tokens + lengths[index] <= seq_len), None)
        if fitting is None:
            bins.append(fitting := _Bin())
        fitting.rows.append(index)
        fitting.tokens += lengths[index]
    return bins


def _micro_batch(rows: Sequence[TrainRow], trained: int, temperature: float) -> MicroBatch:
    tokens = [row.sample.tokens[: row.length] for row in rows]
    lengths = [len(each) for each in tokens]
    masks = [row.sample.weight[: row.length] > 0 for row in rows]

    def where_trained(arrays: Sequence[np.ndarray]) -> list[float]:
        cut = (np.where(m, a[: len(m)], 0.0) for m, a in zip(masks, arrays, strict=True))
        return np.concatenate(list(cut)).tolist()

    return MicroBatch(
        input_ids=np.concatenate(tokens).tolist(),
        loss_mask=np.concatenate(masks).tolist(),
        advantages=where_trained([row.sample.advantage for row in rows]),
        inference_logprobs=where_trained([_old_logprobs(row) for row in rows]),
        position_ids=[at for length in lengths for at in range(length)],
        sequence_lengths=lengths,
        temperatures=[temperature] * sum(lengths),
        env_names=[ENVIRONMENT] * sum(lengths),
        seq_lens=lengths,
        rl_weights=where_trained([row.scale.astype(np.float64) * trained for row in rows]),
    )


def _untrained(micro_batch: MicroBatch) -> MicroBatch:
    count = len(micro_batch.input_ids)
    return msgspec.structs.replace(
        micro_batch, loss_mask=[False] * count, advantages=[0.0] * count, rl_weights=[0.0] * count
    )


def _old_logprobs(row: TrainRow) -> np.ndarray:
    assert row.old_logprobs is not None, "rows were checked"
    return row.old_logprobs


def _require_sendable(row: TrainRow, seq_len: int) -> None:
    name = row.sample.rollout_id
    if row.length > seq_len:
        raise TrainError(
            f"rollout {name} has a branch of {row.length} tokens, and train.prime_rl.seq_len is {seq_len}: "
            "raise it to engine.context_tokens"
        )
    if row.old_logprobs is None:
        raise TrainError(f"rollout {name} has no log-probabilities of the engine")
    if row.sample.routing is not None:
        raise TrainError(
            f"rollout {name} records the experts of its tokens, which are not sent to prime-rl: set "
            "train.routing_replay = false"
        )
