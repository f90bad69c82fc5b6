"""The learner in the process of the run: one model on one device, or replicas on the threads of a CPU."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from hone.policy.engines.nccl import PublishedWeights, Sender, open_sender
from hone.policy.local import use_threads
from hone.policy.routing import find_routers
from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.errors import NonFinite, StepCancelled, TrainError
from hone.train.learner import PassReport, Usage
from hone.train.lora import (
    adapters_disabled,
    add_adapters,
    base_digest,
    has_adapters,
    require_same_base,
    save_adapters,
    save_merged,
)
from hone.train.loss import Objective, value_loss
from hone.train.masters import MasterWeights
from hone.train.optimizer import end_names, make_optimizers
from hone.train.passes import balance, cost_model
from hone.train.policy_model import PolicyModel, require_exact_passes
from hone.train.publish import published
from hone.train.routing import replayed_tokens, require_fitting
from hone.train.run_pass import PassResult, run_pass
from hone.train.settings import EXPERTS, LearnerSettings, OptimizerSettings, PassSettings
from hone.train.sharded_state import begin_save, load
from hone.train.usage import device_usage, head_parameters, training_flops
from hone.train.value_model import HEAD, ValueModel, value_head
from hone.types import Float32

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_Modules = tuple[PolicyModel, ValueModel | None]
_Module = TypeVar("_Module", bound=torch.nn.Module)


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
        """Put adapters into `model` if `settings` has them.

        `reference` is the frozen model of the KL term; required if and only if the objective has one and no
        adapters are trained; a model with adapters is its own reference once they are disabled.
        """
        settings = settings or LearnerSettings()
        if passes.workers > 1 and (model.device.type != "cpu" or model.dtype != torch.float32):
            raise TrainError(
                f"`workers` is {passes.workers}, which needs a float32 model on the CPU, not {model.dtype} "
                f"on {model.device}: use 1"
            )
        if settings.lora is not None and EXPERTS in settings.lora.targets and passes.workers > 1:
            raise TrainError(
                f"`workers` is {passes.workers}, but several threads cannot compute adapted experts at once: "
                "use 1"
            )
        if settings.lora is not None:
            add_adapters(model, settings.lora)
        self._adapted = has_adapters(model)
        if (objective.uses_reference and not self._adapted) != (reference is not None):
            raise TrainError(
                "a reference model is needed exactly when loss.kl_coef is above 0 and all weights are trained"
            )
        self._settings = settings
        self._passes = passes
        self._objective = objective
        self.model = model
        head = None if objective.critic is None else value_head(model)
        self._policy, self._critic = self._modules_of(model, head)
        require_exact_passes(self._policy, model.device, model.dtype)
        self._max_grad_norm = optimizer.max_grad_norm
        self._reference = None if reference is None else self._modules_of(reference, None)[0]
        self._cost = cost_model(model.config)
        self._replays = settings.routing_replay and bool(find_routers(model))
        self._cancelled = threading.Event()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        critic = {} if head is None else {f"{HEAD}.{name}": p for name, p in head.named_parameters()}
        offload = torch.device("cpu") if settings.memory.offload_optimizer else None
        self.masters = MasterWeights(trained | critic, offload)
        ends = end_names(model) | critic.keys()
        self.optimizers = make_optimizers(self.masters.parameters, ends, optimizer)
        self._replicas = [
            self._modules_of(_replica(model), None if head is None else _replica(head))
            for _ in range(passes.workers - 1)
        ]
        # Kept between steps: new threads start with cold caches. The threads end with the learner.
        self._pool = ThreadPoolExecutor(passes.workers, initializer=use_threads, initargs=(1,))

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        """Add the gradient of sum(scale x loss) over `rows` (see `Learner`).

        Each worker uses its own replica. The gradients are added in a fixed order, so the same rows always
        give the same sum.
        """
        batches = self._plan(rows)
        shares = balance(batches, len(self._replicas) + 1)

        def work(modules: _Modules, indices: list[int]) -> list[tuple[int, PassResult, float]]:
            policy, critic = modules
            return [
                (
                    i,
                    run_pass(policy, batches[i], self._loss),
                    0.0 if critic is None else run_pass(critic, batches[i], self._value_loss).loss,
                )
                for i in indices
            ]

        try:
            if not self._replicas:
                done = [work((self._policy, self._critic), shares[0])]
            else:
                workers = [(self._policy, self._critic), *self._replicas]
                futures = [self._pool.submit(work, *job) for job in zip(workers, shares, strict=True)]
                wait(futures)  # for all, even after an error: a running worker still writes gradients
                done = [future.result() for future in futures]
        except BaseException:  # a part of a gradient must not reach the next step
            self.clear_gradients()
            self._cancelled.clear()
            raise
        self._add_gradients()
        ordered = sorted((each for share in done for each in share), key=lambda each: each[0])
        results = [result for _, result, _ in ordered]
        flops = training_flops(batches, self._cost, head_parameters(self.model), adapters=self._adapted)
        return PassReport(
            loss=sum(result.loss + values for _, result, values in ordered),
            logprobs=_by_row(len(rows), batches, [result.logprobs for result in results]),
            entropies=_by_row(len(rows), batches, [result.entropies for result in results]),
            branch_tokens=sum(batch.forest.branch_tokens for batch in batches),
            unique_tokens=sum(len(batch.forest.tokens) for batch in batches),
            passes=Counter(batch.kind for batch in batches),
            replayed=replayed_tokens([b.routing for b in batches]) if self._replays else None,
            flops=flops if self._critic is None else 2 * flops,
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
        for module in itertools.chain.from_iterable(self._replicas):
            if module is not None:
                module.zero_grad(set_to_none=True)

    @torch.no_grad()
    def values(self, rows: Sequence[TrainRow]) -> list[Float32]:
        assert self._critic is not None, "the objective has no critic"
        batches = self._plan(rows)
        return _by_row(len(rows), batches, [self._logprobs(self._critic, batch) for batch in batches])

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        batches = self._plan(rows)
        with ExitStack() as stack:
            policy = self._policy
            if of == "reference":
                assert self._objective.uses_reference, "the objective has no reference"
                if self._reference is not None:
                    policy = self._reference
                else:
                    stack.enter_context(adapters_disabled(self.model))
            values = [self._logprobs(policy, batch) for batch in batches]
        return _by_row(len(rows), batches, values)

    @torch.no_grad()
    def next_logprobs(self, prompt: Sequence[int]) -> Float32:
        ids = torch.tensor([list(prompt)], device=self.model.device)
        return self._policy.next_logprobs(ids).cpu().numpy()

    def save(self, folder: Path) -> Callable[[], None]:
        return begin_save(folder, {**self.masters.parameters, **self._base()}, self.optimizers)

    def load(self, folder: Path) -> None:
        expected, found = self._base(), self._base()
        load(folder, {**self.masters.parameters, **found}, self.optimizers)
        require_same_base(folder, found, expected, self.model.name_or_path or "")
        self.masters.round_to_model()

    def export(self, folder: Path) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it would overwrite the run's progress display
        if not self._adapted:
            self.model.save_pretrained(str(folder))
            return
        save_merged(self.model, folder)
        self.export_adapters(folder / "adapter")

    @property
    def adapted(self) -> bool:
        return self._adapted

    def export_adapters(self, folder: Path) -> None:
        save_adapters(self.model, folder, base=self.model.name_or_path or "")

    def sender(self, kind: str) -> Sender:
        return open_sender(kind, self.model.device)

    def published(self) -> PublishedWeights:
        return published(self.model)

    def usage(self) -> Usage:
        return device_usage(self.model.device)

    def cancel(self) -> None:
        self._cancelled.set()

    def restart(self) -> None:
        raise TrainError("a learner in this process has no ranks to restart: start the run again")

    def close(self) -> None:
        self._pool.shutdown()

    def _base(self) -> dict[str, Tensor]:
        """Return what tells the base model of adapters apart; empty where all weights are trained."""
        return {"base": base_digest(self.model)} if self._adapted else {}

    def _modules_of(self, model: PreTrainedModel, head: torch.nn.Linear | None) -> _Modules:
        memory = self._settings.memory
        policy = PolicyModel(
            model,
            temperature=self._objective.temperature,
            logit_tokens=self._passes.logit_tokens,
            memory=memory,
        )
        return policy, None if head is None else ValueModel(model, head, memory)

    def _plan(self, rows: Sequence[TrainRow]) -> list[MicroBatch]:
        if self._settings.routing_replay:
            require_fitting([row.sample for row in rows], self.model)
        return micro_batches(
            rows,
            tree=self._settings.tree,
            budget_tokens=self._passes.micro_batch_tokens,
            cost=self._cost,
            device=self.model.device,
            parts=self._passes.workers,
            replay=self._settings.routing_replay,
        )

    def _add_gradients(self) -> None:
        """Add the gradients of the replicas to the model's and clear them."""
        own = self._policy if self._critic is None else self._critic  # it has the head as well
        for policy, critic in self._replicas:
            replica = policy if critic is None else critic
            for main, other in zip(own.parameters(), replica.parameters(), strict=True):
                if main.grad is None:
                    main.grad = other.grad
                elif other.grad is not None:
                    main.grad += other.grad
            replica.zero_grad(set_to_none=True)

    def _loss(self, logprobs: Tensor, batch: MicroBatch) -> Tensor:
        """Return the sum of scale x loss. Raises NonFinite, StepCancelled."""
        self._raise_if_cancelled()
        return self._finite((self._objective(logprobs, batch) * batch.scale).sum())

    def _value_loss(self, values: Tensor, batch: MicroBatch) -> Tensor:
        """Return the sum of scale x loss of the critic. Raises NonFinite, StepCancelled."""
        self._raise_if_cancelled()
        assert self._objective.critic is not None, "values have a critic"
        return self._finite((value_loss(values, batch, self._objective.critic) * batch.scale).sum())

    def _finite(self, loss: Tensor) -> Tensor:
        if not math.isfinite(value := float(loss.detach())):
            raise NonFinite(
                f"the loss is {value}: the weights or the log-probabilities of the samples are not finite; "
                "resume from the last checkpoint with a lower learning rate"
            )
        return loss

    def _logprobs(self, policy: PolicyModel, batch: MicroBatch) -> Tensor:
        self._raise_if_cancelled()
        return run_pass(policy, batch, None).logprobs

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise StepCancelled


def _replica(model: _Module) -> _Module:
    """Return a module that shares the weight tensors of `model` but has its own gradients."""
    shared = {id(p): torch.nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def _by_row(count: int, batches: Sequence[MicroBatch], values: Sequence[Tensor]) -> list[Float32]:
    """Return the part of each row, [n], from the values of its pass, [N]."""
    parts = dict(pair for batch, flat in zip(batches, values, strict=True) for pair in batch.by_row(flat))
    return [parts[row] for row in range(count)]
