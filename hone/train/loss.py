"""From advantages to a loss per trained token, and the normalisation of the sum over tokens.

The functions work on flat arrays of trained tokens, without padding and prompts. Invariant: `token_scales`
normalises over the whole mini-batch, so splitting it into forward passes changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from hone.train.algorithms.contract import AlgorithmSettings, Critic, Normalisation
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.rule import LossRule, loss_rule
from hone.train.batches import MicroBatch
from hone.train.errors import TrainError
from hone.train.settings import LossSettings
from hone.types import Float32, Sample

LARGEST_KL_LOG = 10.0  # nats by which the reference is more certain of a token, for the k3 estimator


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: Literal["k2", "k3"]) -> Tensor:
    """Return the per-token loss that holds the policy near the reference; [N] -> [N], never negative.

    With d = reference - logprobs (J. Schulman, "Approximating KL Divergence", 2020):
    k2 = d^2 / 2, whose gradient is, over tokens of the policy, that of KL(policy, reference);
    k3 = exp(d) - 1 - d, as in GRPO (arXiv:2402.03300, equation 4), whose gradient is that of
    KL(reference, policy), although its value is an unbiased estimate of KL(policy, reference). Above
    LARGEST_KL_LOG it continues along its tangent, so that its gradient is finite.
    k1 = -d is the unbiased estimate of the least cost, but its gradient is 0 on average.
    """
    d = reference - logprobs
    match estimator:
        case "k2":
            return d.square() / 2
        case "k3":
            capped = d.clamp(max=LARGEST_KL_LOG)
            return torch.exp(capped) * (1 + (d - capped)) - 1 - d


def value_loss(values: Tensor, batch: MicroBatch, critic: Critic) -> Tensor:
    """Return the weighted loss of the critic's values; [N] -> [N].

    value_coef / 2 * max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2), where R are the
    returns: the squared error of PPO (arXiv:1707.06347, equation 9), clipped as its published code does.
    """
    assert batch.values is not None, "rows of a critic have values"
    assert batch.returns is not None, "rows of a critic have returns"
    moved = batch.values + (values - batch.values).clamp(-critic.value_clip, critic.value_clip)
    errors = torch.maximum((values - batch.returns).square(), (moved - batch.returns).square())
    return critic.value_coef / 2 * errors


def token_scales(
    samples: Sequence[Sample], normalisation: Normalisation, constant_tokens: int | None = None
) -> list[Float32]:
    """Return the factor of each token's loss, one [T] array per sample, 0 where the weight is 0.

    With w a token's weight and W sums of weights (DAPO section 3.3 compares the first two):

    token       w / W(mini-batch): every token counts the same; DAPO
    trajectory  w / W(its rollout) / rollouts: every rollout counts the same; GRPO (arXiv:2402.03300, eq. 3)
    group       w / W(its group) / groups: every group counts the same
    constant    w / constant_tokens / rollouts: no length bias; Dr. GRPO (arXiv:2503.20783)

    All branches of a rollout count as one rollout.
    """
    totals: dict[str, float] = defaultdict(float)
    keys = [_key(sample, normalisation) for sample in samples]
    for key, sample in zip(keys, samples, strict=True):
        totals[key] += float(sample.weight.sum(dtype=np.float64))
    counted = sum(total > 0 for total in totals.values())
    scales: list[Float32] = []
    for key, sample in zip(keys, samples, strict=True):
        total = float(constant_tokens) if constant_tokens is not None else totals[key]
        divisor = total * counted
        scales.append((sample.weight / divisor if divisor else sample.weight).astype(np.float32))
    return scales


def _key(sample: Sample, normalisation: Normalisation) -> str:
    match normalisation:
        case "token":
            return ""
        case "group":
            return sample.group_id
        case "trajectory" | "constant":
            return sample.rollout_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A loss per trained token, summed with `scales`."""

    temperature: float = 1.0  # divisor of the logits; the engine's where its log-probabilities are used
    recomputes: bool = False  # old log-probabilities: the trainer's, before the first optimiser step
    uses_reference: bool = False  # the loss needs the log-probabilities of a reference model

    @property
    def rule(self) -> LossRule | None:
        """How the ratio of new to old probabilities enters the loss; None: there is no ratio."""
        return None

    @property
    def critic(self) -> Critic | None:
        """How advantages follow from a critic; None: there is none."""
        return None if self.rule is None else self.rule.critic

    def scales(self, samples: Sequence[Sample]) -> list[Float32]:
        """Return the factor of each token's loss, see `token_scales`."""
        return token_scales(samples, "token")

    def has_gradient(self, sample: Sample) -> bool:
        """Return whether the sample can change a weight; any sample counts in `scales`."""
        return True

    def __call__(self, logprobs: Tensor, batch: MicroBatch) -> Tensor:
        """Return the loss per token, [N] -> [N]."""
        raise NotImplementedError


class CrossEntropy(Objective):
    """Supervised training: the negative log-likelihood, averaged over the trained tokens of the batch."""

    def __call__(self, logprobs: Tensor, batch: MicroBatch) -> Tensor:
        return -logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective(Objective):
    """Reinforcement learning: the clipped surrogate plus an optional KL term to a reference model."""

    settings: LossSettings
    loss_rule: LossRule

    @property
    def rule(self) -> LossRule:
        return self.loss_rule

    def scales(self, samples: Sequence[Sample]) -> list[Float32]:
        return token_scales(samples, self.loss_rule.normalisation, self.loss_rule.constant_tokens)

    def has_gradient(self, sample: Sample) -> bool:
        return (
            self.uses_reference
            or self.critic is not None
            or bool(np.any(sample.advantage[sample.weight > 0]))
        )

    def __call__(self, logprobs: Tensor, batch: MicroBatch) -> Tensor:
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        rule = self.loss_rule
        loss = rule.surrogate.loss(logprobs, old, batch.advantages, rule.bounds)
        if batch.reference is not None:
            estimator = cast('Literal["k2", "k3"]', self.settings.kl_estimator)  # settings refuse k1
            kl = kl_estimate(logprobs, batch.reference, estimator)
            loss = loss + self.settings.kl_coef * kl
        return loss


def policy_objective(
    settings: LossSettings, temperature: float, algorithm: AlgorithmSettings | None = None
) -> PolicyObjective:
    """Return the objective of an algorithm (default: GRPO) for replies sampled at `temperature`.

    Raises TrainError at temperature 0, and for an option of `settings` that the algorithm does not use.
    """
    if temperature <= 0:
        raise TrainError("replies sampled at temperature 0 cannot be trained on: set a temperature above 0")
    try:
        rule = loss_rule(algorithm or GrpoSettings(), settings)
    except ValueError as error:  # of an algorithm that settings do not load
        raise TrainError(str(error)) from error
    return PolicyObjective(
        settings=settings,
        loss_rule=rule,
        temperature=temperature,
        recomputes=settings.old_logprobs == "recomputed",
        uses_reference=settings.kl_coef > 0,
    )
