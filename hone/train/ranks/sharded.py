"""The learner's verbs on one rank: SPMD, every rank makes the same calls in the same order.

Every rank receives all rows and makes the same plan of passes. A group of ranks (see `World.data_rank`)
computes its passes, round by round; one that has none left repeats the cheapest with a scale of 0, because
every pass gathers weights from all ranks. Before each backward pass all ranks agree to go on, so a cancelled
call or a loss that is not finite ends the call on every rank.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from hone.policy.engines import nccl
from hone.policy.engines.fingerprint import Fingerprint
from hone.policy.engines.nccl import Manifest, OpenSender, Rendezvous
from hone.policy.routing import find_routers
from hone.train.batches import MicroBatch, TrainRow, micro_batches
from hone.train.errors import NonFinite, StepCancelled
from hone.train.learner import LearnerSpec, PassReport, Usage
from hone.train.lora import (
    adapters_disabled,
    add_adapters,
    base_digest,
    merged_tensors,
    require_same_base,
    save_adapters,
)
from hone.train.masters import MasterWeights
from hone.train.optimizer import end_names, make_optimizers
from hone.train.passes import cost_model, rounds
from hone.train.policy_model import PolicyModel, require_exact_passes
from hone.train.publish import hub_layers, manifest_of, tied_names, with_tied
from hone.train.ranks.gradients import add_parts, add_whole, clip_gradients
from hone.train.ranks.loading import load_sharded
from hone.train.ranks.servers import ServerGroup, shared_digests
from hone.train.ranks.world import World, open_world
from hone.train.routing import replayed_tokens, require_fitting
from hone.train.run_pass import forward_pass
from hone.train.sharded_state import PendingSave, begin_save, load
from hone.train.ulysses import own_range
from hone.train.usage import device_usage, head_parameters, training_flops
from hone.types import Float32

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def open_learner(
    spec: LearnerSpec,
    timeout_s: float,
    cancelled: threading.Event,
    open_sender: OpenSender | None = None,
) -> ShardedLearner:
    """Join the other ranks and load this rank's shard of the model. Raises TrainError, PolicyError."""
    world = open_world(spec.settings.parallel, timeout_s)
    return ShardedLearner(spec, world, cancelled, open_sender or nccl.open_sender)


class ShardedLearner:
    """This rank's part of a learner. What it returns is its own share; the driver adds the shares."""

    def __init__(
        self, spec: LearnerSpec, world: World, cancelled: threading.Event, open_sender: OpenSender
    ) -> None:
        self._spec = spec
        self._world = world
        self._cancelled = cancelled
        self._servers = ServerGroup(world, open_sender)
        sequence = world.mesh["sequence"]
        self._sequence = sequence.get_group() if sequence.size() > 1 else None
        self._policy, self._partial = self._load()
        model = self._policy.model
        self._adapted = spec.settings.lora is not None
        second = spec.objective.uses_reference and not self._adapted
        self._reference = self._load()[0].requires_grad_(False) if second else None
        if spec.settings.lora is not None:
            add_adapters(model, spec.settings.lora)
        for method in ("plain_logprobs", "next_logprobs"):
            register_fsdp_forward_method(self._policy, method)
        require_exact_passes(self._policy, world.device, getattr(torch, spec.dtype))
        _reshard(self._policy)
        self._cost = cost_model(model.config)
        self._replays = spec.settings.routing_replay and bool(find_routers(model))
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._masters = MasterWeights(
            trained, torch.device("cpu") if self._adapted and self._offload else None
        )
        self.optimizers = make_optimizers(self._masters.parameters, end_names(model), spec.optimizer)
        self._saved: PendingSave | None = None

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        """Add this rank's share of the gradient; return the numbers of its own passes.

        The lists of the report are parallel to the rows; a token that another rank computed is 0 there.
        """
        logprobs, entropies = _empty(rows), _empty(rows)
        total = 0.0
        counted: list[MicroBatch] = []
        try:
            for batch, counts in self._rounds(rows):
                values, entropy, part = forward_pass(self._policy, batch, self._sequence)
                scale = part.scale if counts else torch.zeros_like(part.scale)
                loss = (self._spec.objective(values, part) * scale).sum()
                self._agree(value := float(loss.detach()))
                loss.backward()
                if counts and self._reports:
                    total += value
                    self._store(logprobs, batch, values)
                    self._store(entropies, batch, entropy)
                    counted += [batch] if self._world.mesh["sequence"].get_local_rank() == 0 else []
        except BaseException:  # a part of a gradient must not reach the next step
            self.clear_gradients()
            raise
        return PassReport(
            loss=total,
            logprobs=logprobs,
            entropies=entropies,
            branch_tokens=sum(batch.forest.branch_tokens for batch in counted),
            unique_tokens=sum(len(batch.forest.tokens) for batch in counted),
            passes=Counter(batch.kind for batch in counted),
            replayed=replayed_tokens([b.routing for b in counted]) if self._replays else None,
            flops=training_flops(
                counted, self._cost, head_parameters(self._policy.model), adapters=self._adapted
            ),
        )

    def optim_step(self, lr: float) -> float:
        if self._adapted:
            add_whole(self._masters, self._world)
        add_parts([self._masters.parameters[name] for name in self._partial], self._world)
        norm = clip_gradients(self._masters, self._spec.optimizer.max_grad_norm, self._world)
        if math.isfinite(norm):
            for part in self.optimizers:
                for group in part.param_groups:
                    group["lr"] = lr
                part.step()
            self._masters.round_to_model()
        self.clear_gradients()
        return norm

    def clear_gradients(self) -> None:
        self._masters.clear_gradients()
        _reshard(self._policy)

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        """Return the log-probabilities of the tokens that this rank computed, 0 for the others."""
        assert of == "policy" or self._spec.objective.uses_reference, "the objective has no reference"
        policy = self._reference if of == "reference" and self._reference is not None else self._policy
        base = of == "reference" and self._adapted
        logprobs = _empty(rows)
        with adapters_disabled(policy.model) if base else nullcontext():
            for batch, counts in self._rounds(rows):
                self._agree(0.0)
                values, _, _ = forward_pass(policy, batch, self._sequence)
                if counts and self._reports:
                    self._store(logprobs, batch, values)
        _reshard(policy)
        return logprobs

    @torch.no_grad()
    def next_logprobs(self, prompt: Sequence[int]) -> Float32 | None:
        """Return the log-probabilities [V] of every token after `prompt` on rank 0; None on the others."""
        ids = torch.tensor([list(prompt)], device=self._world.device)
        values = self._policy.next_logprobs(ids)
        _reshard(self._policy)
        return values.cpu().numpy() if self._world.rank == 0 else None

    def save(self, folder: Path) -> None:
        """Copy the state and write it in a thread; see `is_saved`."""
        state = {**self._masters.parameters, **self._base}
        self._saved = begin_save(folder, state, self.optimizers, group=self._world.saving)

    def is_saved(self) -> bool:
        """Return whether the files of the last `save` are complete. Raises CheckpointError."""
        assert self._saved is not None, "nothing was saved"
        if not self._saved.is_done:
            return False
        self._saved()
        return True

    def load(self, folder: Path) -> None:
        found = {name: tensor.clone() for name, tensor in self._base.items()}
        load(folder, {**self._masters.parameters, **found}, self.optimizers, group=self._world.saving)
        require_same_base(folder, found, self._base, self._spec.model)
        self._masters.round_to_model()

    def export(self, folder: Path) -> None:
        """Write this rank's share of the whole tensors as one file; rank 0 adds index and configuration."""
        from safetensors.torch import save_file
        from transformers.core_model_loading import revert_weight_conversion

        model, world = self._policy.model, self._world
        dtype = getattr(torch, self._spec.dtype)
        own: dict[str, Tensor] = {}
        for index, (name, whole) in enumerate(merged_tensors(model, skip=tied_names(model))):
            if index % world.size == world.rank:
                own[name] = whole.detach().to("cpu", dtype if whole.is_floating_point() else None)
        named = {name: tensor.contiguous() for name, tensor in revert_weight_conversion(model, own).items()}
        file = f"model-{world.rank + 1:05d}-of-{world.size:05d}.safetensors"
        save_file(named, folder / file, metadata={"format": "pt"})
        files: list[Any] = [None] * world.size
        sizes = sum(tensor.numel() * tensor.itemsize for tensor in named.values())
        dist.all_gather_object(files, (file, list(named), sizes), group=world.control)
        if world.rank == 0:
            _write_index(model, folder, files, dtype)
        if self._adapted:
            self.export_adapters(folder / "adapter")

    def export_adapters(self, folder: Path) -> None:
        """Write the adapters, which every rank holds, on rank 0."""
        if self._world.rank == 0:
            save_adapters(self._policy.model, folder, base=self._spec.model)

    def open_sender(self, kind: str) -> None:
        """Raise TrainError unless rank 0 can send weights to servers of `kind`."""
        self._servers.open(kind)

    def server_address(self) -> tuple[str, int]:
        """Return this machine's address and a free port, where engine servers may meet rank 0."""
        return nccl.own_address()

    def join_servers(self, rendezvous: Rendezvous) -> None:
        self._servers.join(rendezvous)

    def published(self) -> tuple[Manifest, Fingerprint]:
        """Return names, dtypes and shapes of the tensors of `broadcast`, in its order, and their digests."""
        model, dtype = self._policy.model, getattr(torch, self._spec.dtype)
        digests = shared_digests(self._hub_tensors(), self._world)
        return manifest_of(model, dtype=dtype), with_tied(model, digests)

    def broadcast(self) -> None:
        """Send the weights to the servers that rank 0 has joined, in the precision of `export`."""
        self._servers.broadcast(tensor for _, tensor in self._hub_tensors())

    def leave_servers(self) -> None:
        """Let rank 0 leave the servers' group, from any thread; ends a `broadcast` early."""
        self._servers.leave()

    def _hub_tensors(self) -> Iterator[tuple[str, Tensor]]:
        dtype = getattr(torch, self._spec.dtype)
        for layer in hub_layers(self._policy.model, dtype=dtype):
            yield from layer

    def usage(self) -> Usage:
        return device_usage(self._world.device)

    @cached_property
    def _base(self) -> dict[str, Tensor]:
        """What tells the base model of adapters apart; empty where all weights are trained."""
        return {"base": base_digest(self._policy.model)} if self._adapted else {}

    @property
    def _offload(self) -> bool:
        return self._spec.settings.memory.offload_optimizer and self._world.device.type != "cpu"

    @property
    def _reports(self) -> bool:
        """Whether this rank returns the numbers of its tokens; its tensor group holds the same."""
        return self._world.mesh["tensor"].get_local_rank() == 0

    def _load(self) -> tuple[PolicyModel, list[str]]:
        spec = self._spec

        def make_root(model: PreTrainedModel) -> nn.Module:
            return PolicyModel(
                model,
                temperature=spec.objective.temperature,
                logit_tokens=spec.passes.logit_tokens,
                memory=spec.settings.memory,
            )

        frozen = spec.settings.lora is not None
        policy, partial = load_sharded(
            spec.model,
            spec.dtype,
            self._world,
            make_root,
            offload=self._offload and not frozen,
            frozen=frozen,
        )
        return cast("PolicyModel", policy.eval()), partial

    def _rounds(self, rows: Sequence[TrainRow]) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield this rank's passes, and whether each counts; the plan is the same on every rank."""
        if self._spec.settings.routing_replay:
            require_fitting([row.sample for row in rows], self._policy.model)
        passes = micro_batches(
            rows,
            tree=self._spec.settings.tree,
            budget_tokens=self._spec.passes.micro_batch_tokens,
            cost=self._cost,
            device=self._world.device,
            parts=self._world.data_size,
            in_rounds=True,
            replay=self._spec.settings.routing_replay,
        )
        cheapest = min(range(len(passes)), key=lambda index: passes[index].cost)
        for round_ in rounds([batch.cost for batch in passes], self._world.data_size):
            mine = round_[self._world.data_rank]
            yield passes[cheapest if mine is None else mine], mine is not None

    def _store(self, parts: list[Float32], batch: MicroBatch, values: Tensor) -> None:
        """Put the values of the tokens that this rank computed where their rows belong."""
        whole = torch.zeros(len(batch.targets))
        own = slice(None)
        if self._sequence is not None:
            start, end = own_range(len(batch.forest.tokens), self._sequence)
            own = torch.from_numpy((batch.predictors >= start) & (batch.predictors < end))
        whole[own] = values.detach().float().cpu()
        for row, part in batch.by_row(whole):
            parts[row] = part

    def _agree(self, loss: float) -> None:
        """Raise NonFinite or StepCancelled on every rank if there is a reason on any."""
        bad, cancelled = self._world.sum([not math.isfinite(loss), self._cancelled.is_set()])
        if cancelled:
            raise StepCancelled
        if bad:
            raise NonFinite(
                "the loss is not finite on some rank: the weights or the log-probabilities of the samples are"
                " not finite; resume from the last checkpoint with a lower learning rate"
            )


def _empty(rows: Sequence[TrainRow]) -> list[Float32]:
    return [np.zeros(len(row.trained), np.float32) for row in rows]


def _write_index(
    model: PreTrainedModel, folder: Path, files: Sequence[tuple[str, list[str], int]], dtype: torch.dtype
) -> None:
    index = {
        "metadata": {"total_size": sum(size for _, _, size in files)},
        "weight_map": {name: file for file, names, _ in files for name in names},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    config = type(model.config).from_dict(model.config.to_dict())
    config.dtype = dtype
    config.architectures = [type(model).__mro__[1].__name__]  # the class that loading derived from
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def _reshard(root: nn.Module) -> None:
    """Free gathered weights: those of a pass without a backward pass would outlive the next update."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
