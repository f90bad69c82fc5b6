"""One training step: samples in, new weights and metrics out.

    samples -> mini-batches -> micro-batches -> log-probabilities -> loss -> gradients -> clip -> optimiser

The model stays in evaluation mode: dropout would change the ratio against the sampled policy. It is trained
in place, in its own precision (no autocast), so an engine may share it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hone.policy.local import use_threads
from hone.train.batches import MicroBatch, TrainRow, micro_batches, split_rollouts
from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.logprobs import require_plain_head, token_logprobs
from hone.train.loss import Objective, policy_objective
from hone.train.optimizer import learning_rate, make_optimizers
from hone.train.settings import BatchSettings, OptimizerSettings, TrainSettings
from hone.train.stats import StepStats
from hone.types import Float32, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SKIPS_IN_A_ROW = 3  # low precision causes single bad gradients; three in a row are a defect


class Trainer:
    """Trains `model` in place.

    A non-finite loss raises NonFinite before any weight changes. A non-finite gradient norm skips the
    optimiser step and is counted in `skipped/non_finite_gradient`; three in a row raise NonFinite. A
    mini-batch without a gradient (all advantages 0) leaves the weights unchanged and is counted in
    `skipped/no_signal`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        objective: Objective,
        optimizer: OptimizerSettings,
        batch: BatchSettings,
        total_optimizer_steps: int,
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`reference` is the frozen model of the KL term; required if and only if the objective has one."""
        if objective.uses_reference != (reference is not None):
            raise TrainError("a reference model is needed exactly when loss.kl_coef is above 0")
        if batch.workers > 1 and model.device.type != "cpu":
            raise TrainError(
                f"`workers` is {batch.workers}, which needs a model on the CPU, not {model.device}: use 1"
            )
        require_plain_head(model)
        self.model = model.eval()
        self.optimizer_steps = 0
        self._objective = objective
        self._settings = optimizer
        self._batch = batch
        self._total = total_optimizer_steps
        self._reference = reference
        self._skips_in_a_row = 0
        self._calls = 0
        self._cancelled = threading.Event()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._replicas = [_replica(self.model) for _ in range(batch.workers - 1)]
        # Kept between steps: new threads start with cold caches. The threads end with the trainer.
        self._pool = ThreadPoolExecutor(batch.workers, initializer=use_threads, initargs=(1,))
        self.optimizers = make_optimizers(model, optimizer)

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Train on `samples`, `epochs` passes of `mini_batches` optimiser steps each; return the metrics.

        Metrics: loss (mean over the mini-batches, always present); grad_norm, lr (means over the optimiser
        steps made); ratio_max_deviation, ratio_mean_deviation (of the ratio from 1), clip_fraction, approx_kl
        (k3, old to new), entropy (nats); logp_gap_max (max |engine - trainer| over the tokens of the first
        optimiser step); tokens, trained_tokens (of all forward passes, over all epochs);
        optimizer_steps; skipped/<reason>; seconds, tokens_per_s.

        Raises NonFinite, and TrainError, which names the rollout, for an invalid sample.
        """
        started = time.perf_counter()
        _require_valid(samples)
        self._cancelled.clear()
        stats = StepStats(self._objective.clip)
        rng = np.random.default_rng((self._batch.seed, self._calls))
        self._calls += 1
        rows = self._rows(samples)
        for _ in range(self._batch.epochs):
            for indices in split_rollouts(samples, self._batch.mini_batches, rng):
                self._optimizer_step([rows[i] for i in indices], stats)
        return stats.metrics(time.perf_counter() - started)

    def cancel(self) -> None:
        """Make a `step` in another thread raise StepCancelled after its current forward pass.

        The weights are then in an intermediate state: resume from a checkpoint.
        """
        self._cancelled.set()

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], model: PreTrainedModel | None = None) -> list[Float32]:
        """Return [T] per sample: the log-probability of each token with weight, 0 elsewhere.

        Uses the trainer's current weights, or those of `model`.
        """
        rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=None) for s in samples]
        scored = [np.zeros(len(s.tokens), np.float32) for s in samples]
        for batch in micro_batches(rows, self._batch.micro_batch_tokens, self.model.device):
            logprobs, _ = self._forward(batch, model or self.model)
            start = 0
            values = logprobs.cpu().numpy()
            for index in batch.rows:
                at = np.flatnonzero(samples[index].weight)
                scored[index][at] = values[start : start + len(at)]
                start += len(at)
        return scored

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the weights, from which `load_state_dict` continues bit for bit."""
        return {
            "optimizers": [part.state_dict() for part in self.optimizers],
            "optimizer_steps": self.optimizer_steps,
            "calls": self._calls,
            "skips_in_a_row": self._skips_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.optimizers, state["optimizers"], strict=True):
            part.load_state_dict(saved)
        self.optimizer_steps = state["optimizer_steps"]
        self._calls = state["calls"]
        self._skips_in_a_row = state["skips_in_a_row"]

    def _rows(self, samples: Sequence[Sample]) -> list[TrainRow]:
        """Return the rows of a batch with their old and reference log-probabilities."""
        old: Sequence[Float32 | None] = [s.logprobs for s in samples]
        if self._objective.recomputes:
            one_step = self._batch.epochs == 1 and self._batch.mini_batches == 1
            old = [None] * len(samples) if one_step else self.logprobs(samples)
        rows = [TrainRow(sample=s, scale=s.weight, old_logprobs=o) for s, o in zip(samples, old, strict=True)]
        if self._reference is None:
            return rows
        reference = self.logprobs(samples, self._reference)
        return [replace(row, reference=r) for row, r in zip(rows, reference, strict=True)]

    def _optimizer_step(self, rows: Sequence[TrainRow], stats: StepStats) -> None:
        lr = learning_rate(self.optimizer_steps, self._total, self._settings)
        self.optimizer_steps += 1
        scales = self._objective.scales([row.sample for row in rows])
        scaled = [replace(row, scale=scale) for row, scale in zip(rows, scales, strict=True)]
        active = [row for row in scaled if self._objective.has_gradient(row.sample)]
        if not active:
            stats.add_loss(0.0)
            stats.skip("no_signal")
            return
        loss = self._accumulate(
            micro_batches(active, self._batch.micro_batch_tokens, self.model.device), stats
        )
        stats.add_loss(loss)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm))
        if np.isfinite(norm):
            for part in self.optimizers:
                for group in part.param_groups:
                    group["lr"] = lr
                part.step()
            self._skips_in_a_row = 0
            stats.add_step(grad_norm=norm, lr=lr)
        else:
            self._skips_in_a_row += 1
            stats.skip("non_finite_gradient")
        self.model.zero_grad(set_to_none=True)
        if self._skips_in_a_row == SKIPS_IN_A_ROW:
            raise NonFinite(
                f"the gradient was not finite in {SKIPS_IN_A_ROW} optimiser steps in a row: lower the "
                "learning rate, or train in float32"
            )

    def _accumulate(self, batches: Sequence[MicroBatch], stats: StepStats) -> float:
        """Accumulate the gradient of all `batches` in the parameters; return their loss.

        Each worker uses its own replica. The gradients are added in a fixed order, so the same samples
        always give the same sum.
        """
        models = [self.model, *self._replicas][: len(batches)]
        for replica in models[1:]:
            replica.zero_grad(set_to_none=True)

        def work(worker: int) -> list[tuple[float, Tensor, Tensor]]:
            return [self._backward(batch, models[worker]) for batch in batches[worker :: len(models)]]

        try:
            if len(models) == 1:
                shares = [work(0)]
            else:
                futures = [self._pool.submit(work, worker) for worker in range(len(models))]
                wait(futures)  # for all, even after an error: a running worker still writes gradients
                shares = [future.result() for future in futures]
        except NonFinite:
            self.model.zero_grad(set_to_none=True)
            raise
        for replica in models[1:]:
            for main, other in zip(self.model.parameters(), replica.parameters(), strict=True):
                if main.grad is None:
                    main.grad = other.grad
                elif other.grad is not None:
                    main.grad += other.grad
        total = 0.0
        for index, batch in enumerate(batches):
            loss, logprobs, entropy = shares[index % len(models)][index // len(models)]
            stats.add_micro_batch(batch, logprobs, entropy)
            total += loss
        return total

    def _backward(self, batch: MicroBatch, model: PreTrainedModel) -> tuple[float, Tensor, Tensor]:
        """Backpropagate one micro-batch; return its loss, log-probabilities [N] and entropies [N]."""
        logprobs, entropy = self._forward(batch, model)
        loss = (self._objective(logprobs, batch) * batch.scale).sum()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise NonFinite(
                f"the loss is {value}: the weights or the log-probabilities of the samples are not finite; "
                "resume from the last checkpoint with a lower learning rate"
            )
        loss.backward()
        return value, logprobs.detach(), entropy

    def _forward(self, batch: MicroBatch, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        if self._cancelled.is_set():
            raise StepCancelled
        return token_logprobs(
            model,
            batch.input_ids,
            batch.positions,
            batch.targets,
            temperature=self._objective.temperature,
            logit_tokens=self._batch.logit_tokens,
        )


def _replica(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that shares the weight tensors of `model` but has its own gradients."""
    shared = {id(p): torch.nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def policy_trainer(
    model: PreTrainedModel,
    settings: TrainSettings,
    *,
    temperature: float,
    reference: PreTrainedModel | None = None,
) -> Trainer:
    """Return a trainer for reinforcement learning. `temperature` is the engine's sampling temperature."""
    return Trainer(
        model,
        objective=policy_objective(settings.loss, temperature),
        optimizer=settings.optimizer,
        batch=settings.batch,
        total_optimizer_steps=settings.steps * settings.batch.epochs * settings.batch.mini_batches,
        reference=reference,
    )


def _require_valid(samples: Sequence[Sample]) -> None:
    for sample in samples:
        lengths = {len(a) for a in (sample.tokens, sample.weight, sample.advantage, sample.logprobs)}
        if len(lengths) != 1:
            raise TrainError(f"rollout {sample.rollout_id}: the arrays of a sample differ in length")
        if not sample.weight.any() or sample.weight[0] != 0:
            raise TrainError(
                f"rollout {sample.rollout_id}: a sample needs weight on some token, and none on its first"
            )
        if not np.isfinite(sample.logprobs[sample.weight > 0]).all():
            raise TrainError(f"rollout {sample.rollout_id}: the engine's log-probabilities are not finite")
