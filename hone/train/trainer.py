"""One training step: samples in, new weights and metrics out.

    samples -> mini-batches -> micro-batches -> log-probabilities -> loss -> gradients -> clip -> optimiser

The model stays in evaluation mode: with dropout the ratio would not be that of the policy that was sampled.
It is trained in place, in its own precision (no autocast), so an engine may share it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.policy.threads import use_threads
from hone.train.batches import MicroBatch, TrainRow, micro_batches, split_rollouts
from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.logprobs import require_plain_head, token_logprobs
from hone.train.loss import Objective, PolicyObjective
from hone.train.optimizer import make_optimizers
from hone.train.schedule import learning_rate
from hone.train.settings import BatchSettings, OptimizerSettings, TrainSettings
from hone.train.stats import StepStats
from hone.types import Float32, Sample

SKIPS_IN_A_ROW = 3  # one bad gradient happens in low precision; three are a defect


class Trainer:
    """Trains `model` in place.

    Non-finite numbers: a loss that is not finite raises NonFinite before any weight changes. A gradient norm
    that is not finite skips that optimiser step and is counted in `skipped/non_finite_gradient`; three in a
    row raise NonFinite. A mini-batch in which nothing has a gradient (all advantages 0) leaves the weights
    alone and is counted in `skipped/no_signal`.
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
        """`reference` is the frozen model of the KL term, exactly where the objective has one."""
        if objective.uses_reference != (reference is not None):
            raise TrainError("a reference model is needed exactly when loss.kl_coef is above 0")
        if batch.workers > 1 and model.device.type != "cpu":
            raise TrainError(f"workers above 1 are for training on a CPU, and the model is on {model.device}")
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
        # Kept, for a new thread would find its memory cold; its threads end when the trainer is collected.
        self._pool = ThreadPoolExecutor(batch.workers, initializer=use_threads, initargs=(1,))
        self.optimizers = make_optimizers(model, optimizer)

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Train on `samples`: `epochs` passes of `mini_batches` optimiser steps each; returns the metrics.

        Metrics: loss (mean over the mini-batches, always there); grad_norm, lr (means over the optimiser
        steps made); ratio_max_deviation, ratio_mean_deviation (of the ratio from 1), clip_fraction, approx_kl
        (k3, old to new), entropy (nats); logp_gap_max (max |engine - trainer| over the tokens of the first
        optimiser step); tokens, trained_tokens (that passed through the model, over all epochs);
        optimizer_steps; skipped/<reason>; seconds, tokens_per_s.

        Raises NonFinite, and TrainError, naming the rollout, for an unsound sample.
        """
        started = time.perf_counter()
        _require_sound(samples)
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
        """Make a `step` that runs in another thread raise StepCancelled after its present forward pass.

        The weights may then be anywhere within the step: go on from a checkpoint.
        """
        self._cancelled.set()

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], model: PreTrainedModel | None = None) -> list[Float32]:
        """[T] per sample: log-probability of each token with weight, 0 elsewhere, under the present weights.

        `model` scores with other weights than the trainer's own.
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
        """What `load_state_dict` needs to go on exactly as if nothing had happened; the weights go apart."""
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
        """What stays the same over all optimiser steps of a batch: the old and the reference numbers."""
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
        """Leave the gradient of all `batches` in the parameters; return their loss.

        Each worker takes its share through a model of its own, and their gradients are added in a fixed
        order: the same samples give the same sum every time.
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
                wait(futures)  # for all: whoever goes on while one still works would race with it
                shares = [future.result() for future in futures]
        except NonFinite:
            self.model.zero_grad(set_to_none=True)
            raise
        for replica in models[1:]:
            for ours, theirs in zip(self.model.parameters(), replica.parameters(), strict=True):
                if ours.grad is None:
                    ours.grad = theirs.grad
                elif theirs.grad is not None:
                    ours.grad += theirs.grad
        total = 0.0
        for index, batch in enumerate(batches):
            loss, logprobs, entropy = shares[index % len(models)][index // len(models)]
            stats.add_micro_batch(batch, logprobs, entropy)
            total += loss
        return total

    def _backward(self, batch: MicroBatch, model: PreTrainedModel) -> tuple[float, Tensor, Tensor]:
        """Add one micro-batch's gradient to `model`'s; its loss, log-probabilities [N] and entropies [N]."""
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
    """The same model on the same weights, not a copy of them, with gradients of its own."""
    shared = {id(p): torch.nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def policy_trainer(
    model: PreTrainedModel,
    settings: TrainSettings,
    *,
    temperature: float,
    reference: PreTrainedModel | None = None,
) -> Trainer:
    """A trainer for reinforcement learning. `temperature` is the one that the engine samples with."""
    return Trainer(
        model,
        objective=PolicyObjective(settings.loss, temperature),
        optimizer=settings.optimizer,
        batch=settings.batch,
        total_optimizer_steps=settings.steps * settings.batch.epochs * settings.batch.mini_batches,
        reference=reference,
    )


def _require_sound(samples: Sequence[Sample]) -> None:
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
