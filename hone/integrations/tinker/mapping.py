"""From rows to the examples of the Tinker API, so that the service's gradient is that of Hone's loss.

    Hone     gradient of a sum over all tokens of scale x loss
    service  gradient of a sum over tokens, or of a mean over each row's tokens and then over the rows

Every loss of Hone is a function of log-probabilities. With w = -d(scale x loss) / d(log-probability) of each
token, its gradient is that of the service's `importance_sampling` at ratio 1 with the advantages w. So all
algorithms, clip bounds, corrections and KL terms are exact on any service, whatever losses it has itself; the
price is a pass that computes the present log-probabilities first.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.loss import Objective
from hone.train.passes import CostModel
from hone.types import Float32, Int32

LOSS = "importance_sampling"  # -exp(logprob - `logprobs`) x `advantages`, in every implementation of the API
_ANY_COST = CostModel(hidden=1, layers=1, attention_width=1, layer_parameters=1)  # of passes of one row


class Normalisation(StrEnum):
    """What a service divides the token losses of an example by, beside adding them up."""

    SUM = "sum"  # nothing
    ROW_MEAN = "row_mean"  # the example's tokens, trained or not, times the examples of the optimiser step

    def divisor(self, tokens: int, rows: int) -> int:
        """Return the divisor of an example of `tokens` among `rows` examples."""
        return 1 if self is Normalisation.SUM else tokens * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sequence of T tokens for the service: T - 1 positions, each of which predicts the next token."""

    inputs: Int32  # [T - 1]
    targets: Int32  # [T - 1]
    logprobs: Float32  # [T - 1] denominators of the ratio; 0 where the advantage is
    advantages: Float32  # [T - 1] 0 for tokens that are not trained


def scored_example(tokens: Int32) -> Example:
    """Return an example of which only the log-probabilities are of interest."""
    zeros = np.zeros(len(tokens) - 1, np.float32)
    return Example(inputs=tokens[:-1], targets=tokens[1:], logprobs=zeros, advantages=zeros)


def trained_examples(
    rows: Sequence[TrainRow],
    weights: Sequence[Float32],
    logprobs: Sequence[Float32],
    normalisation: Normalisation,
) -> list[Example]:
    """Return an example per row, up to its last trained token, whose gradients add up to Hone's.

    Args:
        weights: [n] per row, see `losses`.
        logprobs: [n] per row, of its trained tokens under the present weights.
    """
    return [
        _example(row, weight * np.float32(normalisation.divisor(row.length - 1, len(rows))), current)
        for row, weight, current in zip(rows, weights, logprobs, strict=True)
    ]


def _example(row: TrainRow, advantages: Float32, logprobs: Float32) -> Example:
    def spread(values: Float32) -> Float32:
        full = np.zeros(row.length, np.float32)
        full[row.trained] = values
        return full[1:]

    tokens = row.sample.tokens[: row.length]
    return Example(
        inputs=tokens[:-1], targets=tokens[1:], logprobs=spread(logprobs), advantages=spread(advantages)
    )


def losses(
    objective: Objective, rows: Sequence[TrainRow], logprobs: Sequence[Float32]
) -> tuple[float, list[Float32]]:
    """Return the sum of scale x loss over all rows, and minus its derivative by each log-probability.

    Args:
        logprobs: [n] per row, of its trained tokens under the present weights.
    """
    total = 0.0
    weights: list[Float32] = []
    for row, values in zip(rows, logprobs, strict=True):
        batch = _flat(row)
        variable = torch.tensor(values, requires_grad=True)
        loss = (objective(variable, batch) * batch.scale).sum()
        (gradient,) = torch.autograd.grad(loss, variable)
        total += float(loss.detach())
        weights.append(-gradient.numpy())
    return total, weights


def _flat(row: TrainRow) -> MicroBatch:
    """Return the row's trained tokens as the flat arrays that losses take."""
    (batch,) = micro_batches(
        [row], tree="off", budget_tokens=row.length, cost=_ANY_COST, device=torch.device("cpu")
    )
    return batch
