"""Measure what a service does with a gradient, by its effect on log-probabilities.

    X      targets of which the first few are trained
    Y      X and as many further targets again, twice, which are not trained
    X + Y  both

Causality makes the gradients of the trained tokens equal in X and Y, so what differs is the divisor. One step
of Adam with a huge `eps` is a step of gradient descent, and a small one changes log-probabilities in
proportion to the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hone.integrations.tinker.mapping import Example, Normalisation, scored_example
from hone.integrations.tinker.service import Service, ServiceError, Training
from hone.policy.settings import Dtype
from hone.types import Float32, Int32

_TRAINED, _SHORT, _LONG = 4, 12, 36  # targets
_EPS = 1e6  # of Adam; far above the root of any second moment
_CHANGE: Mapping[Dtype, float] = {"float32": 2e-3, "bfloat16": 0.1}  # nats, the least that is measured
_FIRST_RATE, _FACTOR, _LARGEST_RATE = 1e-8, 8.0, 1e8  # of gradient descent
_TOLERANCE = 0.12  # relative, of a ratio of changes; the adapters move a little in between
_KNOWN = {  # (change by Y, change by X + Y) relative to that by X
    Normalisation.SUM: (1.0, 2.0),
    Normalisation.ROW_MEAN: (_SHORT / _LONG, (1 + _SHORT / _LONG) / 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a service does between a loss and the weights."""

    normalisation: Normalisation
    clips: bool  # whether `grad_clip_norm` bounds the norm of the gradient


def measure(service: Service, *, rank: int, vocabulary: int, dtype: Dtype) -> Behaviour:
    """Return the behaviour of a service, measured on adapters that are then left alone.

    `dtype`: of the model, which bounds what can be told from rounding. Raises ServiceError if the service
    normalises in no known way.
    """
    training = service.new_training(rank, seed=0)
    tokens = np.random.default_rng(0).integers(0, vocabulary, _LONG + 1).astype(np.int32)
    short, long = (_probe(training, tokens[: size + 1]) for size in (_SHORT, _LONG))
    rate, change = _FIRST_RATE, 0.0
    while change < _CHANGE[dtype] and rate < _LARGEST_RATE:
        rate *= _FACTOR
        change = _change(training, [short], rate)
    if change < _CHANGE[dtype]:
        raise ServiceError(
            f"{service.url} does not train {service.base_model}: steps of gradient descent changed no "
            "log-probability"
        )
    batches = ([short], [long], [short, long], [short])
    first, longer, both, last = (_change(training, batch, rate) for batch in batches)
    once = (first + last) / 2  # what the adapters have moved in between cancels
    ratios = longer / once, both / once
    clipped = _change(training, [short], rate, grad_clip_norm=1e-9) / once
    for normalisation, expected in _KNOWN.items():
        if np.allclose(ratios, expected, rtol=_TOLERANCE):
            return Behaviour(normalisation=normalisation, clips=clipped < _TOLERANCE)
    raise ServiceError(
        f"{service.url} normalises losses neither by a sum over tokens nor by means over tokens and rows "
        f"(two probes gave {ratios[0]:.2f} and {ratios[1]:.2f} times the gradient of a third): Hone cannot "
        "train on it"
    )


def _probe(training: Training, tokens: Int32) -> Example:
    """Return an example whose first tokens are trained, at ratio 1."""
    example = scored_example(tokens)
    (logprobs,) = training.forward([example])
    advantages = example.advantages.copy()
    advantages[:_TRAINED] = 1
    return replace(example, logprobs=logprobs, advantages=advantages)


def _change(training: Training, batch: Sequence[Example], rate: float, grad_clip_norm: float = 0.0) -> float:
    """Return by how much one step raises the trained log-probabilities of the first example."""
    before = _trained(training.forward_backward(batch))
    training.optim_step(
        learning_rate=rate * _EPS,
        beta1=0.0,
        beta2=0.0,
        eps=_EPS,
        weight_decay=0.0,
        grad_clip_norm=grad_clip_norm,
    )
    return _trained(training.forward(batch)) - before


def _trained(logprobs: Sequence[Float32]) -> float:
    return float(logprobs[0][:_TRAINED].sum(dtype=np.float64))
