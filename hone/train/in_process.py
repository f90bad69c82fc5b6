"""The learner in the process of the run: one model on one device, or replicas on the threads of a CPU."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from hone.policy.local import use_threads
from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.learner import PassReport
from hone.train.logprobs import require_plain_head, token_logprobs
from hone.train.loss import Objective
from hone.train.masters import MasterWeights
from hone.train.optimizer import end_names, make_optimizers
from hone.train.settings import LearnerSettings, OptimizerSettings, PassSettings
from hone.train.sharded_state import begin_save, load
from hone.types import Float32

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class InProcessLearner:
    """Trains `model` in place, on its device; an engine may share it.

    The model stays in evaluation mode: dropout would change the ratio against the sampled policy.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        objective: Objective,
        optimizer: OptimizerSettings,
        passes: PassSettings,
        settings: LearnerSettings | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`reference` is the frozen model of the KL term; required if and only if the objective has one."""
        settings = settings or LearnerSettings()
        if objective.uses_reference != (reference is not None):
            raise TrainError("a reference model is needed exactly when loss.kl_coef is above 0")
        if passes.workers > 1 and (model.device.type != "cpu" or model.dtype != torch.float32):
            raise TrainError(
                f"`workers` is {passes.workers}, which needs a float32 model on the CPU, not {model.dtype} "
                f"on {model.device}: use 1"
            )
        require_plain_head(model)
        self.model = model.eval()
        self._objective = objective
        self._passes = passes
        self._max_grad_norm = optimizer.max_grad_norm
        self._reference = reference
        self._cancelled = threading.Event()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        offload = torch.device("cpu") if settings.memory.offload_optimizer else None
        self.masters = MasterWeights(trained, offload)
        self.optimizers = make_optimizers(self.masters.parameters, end_names(model), optimizer)
        self._replicas = [_replica(model) for _ in range(passes.workers - 1)]
        # Kept between steps: new threads start with cold caches. The threads end with the learner.
        self._pool = ThreadPoolExecutor(passes.workers, initializer=use_threads, initargs=(1,))

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        """Add the gradient of sum(scale x loss) over `rows` (see `Learner`).

        Each worker uses its own replica. The gradients are added in a fixed order, so the same rows always
        give the same sum.
        """
        batches = micro_batches(rows, self._passes.micro_batch_tokens, self.model.device)
        models = [self.model, *self._replicas][: len(batches)]

        def work(worker: int) -> list[tuple[float, Tensor, Tensor]]:
            return [self._backward(batch, models[worker]) for batch in batches[worker :: len(models)]]

        try:
            if len(models) == 1:
                shares = [work(0)]
            else:
                futures = [self._pool.submit(work, worker) for worker in range(len(models))]
                wait(futures)  # for all, even after an error: a running worker still writes gradients
                shares = [future.result() for future in futures]
        except BaseException:  # a part of a gradient must not reach the next step
            self.clear_gradients()
            self._cancelled.clear()
            raise
        self._add_gradients(models[1:])
        results = [shares[i % len(models)][i // len(models)] for i in range(len(batches))]
        logprobs = _by_row(len(rows), batches, [logprobs for _, logprobs, _ in results])
        entropies = _by_row(len(rows), batches, [entropy for _, _, entropy in results])
        tokens = sum(batch.tokens for batch in batches)
        return PassReport(
            loss=sum(loss for loss, _, _ in results),
            logprobs=logprobs,
            entropies=entropies,
            branch_tokens=tokens,
            unique_tokens=tokens,
            passes=Counter(off=len(batches)),
        )

    def optim_step(self, lr: float) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.masters), self._max_grad_norm))
        if math.isfinite(norm):
            for part in self.optimizers:
                for group in part.param_groups:
                    group["lr"] = lr
                part.step()
            self.masters.round_to_model()
        self.clear_gradients()
        return norm

    def clear_gradients(self) -> None:
        self.masters.clear_gradients()
        for replica in self._replicas:
            replica.zero_grad(set_to_none=True)

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        model = self.model if of == "policy" else self._reference
        assert model is not None, "the objective has no reference"
        batches = micro_batches(rows, self._passes.micro_batch_tokens, model.device)
        return _by_row(len(rows), batches, [self._forward(batch, model)[0] for batch in batches])

    def save(self, folder: Path) -> Callable[[], None]:
        return begin_save(folder, self.masters.parameters, self.optimizers)

    def load(self, folder: Path) -> None:
        load(folder, self.masters.parameters, self.optimizers)
        self.masters.round_to_model()

    def export(self, folder: Path) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it would overwrite the run's progress display
        self.model.save_pretrained(str(folder))

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._pool.shutdown()

    def _add_gradients(self, replicas: Sequence[PreTrainedModel]) -> None:
        """Add the gradients of `replicas` to the model's and clear them."""
        for replica in replicas:
            for main, other in zip(self.model.parameters(), replica.parameters(), strict=True):
                if main.grad is None:
                    main.grad = other.grad
                elif other.grad is not None:
                    main.grad += other.grad
            replica.zero_grad(set_to_none=True)

    def _backward(self, batch: MicroBatch, model: PreTrainedModel) -> tuple[float, Tensor, Tensor]:
        """Backpropagate one micro-batch; return its loss, log-probabilities [N] and entropies [N]."""
        logprobs, entropy = self._forward(batch, model)
        loss = (self._objective(logprobs, batch) * batch.scale).sum()
        value = float(loss.detach())
        if not math.isfinite(value):
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
            logit_tokens=self._passes.logit_tokens,
        )


def _replica(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that shares the weight tensors of `model` but has its own gradients."""
    shared = {id(p): torch.nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def _by_row(count: int, batches: Sequence[MicroBatch], values: Sequence[Tensor]) -> list[Float32]:
    """Return the part of each row, [n], from the values of its micro-batch, [N]."""
    parts: dict[int, Float32] = {}
    for batch, tensor in zip(batches, values, strict=True):
        flat = tensor.float().cpu().numpy()
        start = 0
        for row, number in zip(batch.rows, batch.trained, strict=True):
            parts[row] = flat[start : start + number]
            start += number
    return [parts[row] for row in range(count)]
