"""The optimisers and their learning rate: AdamW, or Muon for the layers' matrices and AdamW for the rest."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from hone.train.settings import OptimizerSettings
from hone.train.sharding import gather

if TYPE_CHECKING:  # its import takes seconds
    from transformers import PreTrainedModel


def make_optimizers(
    parameters: Mapping[str, Parameter], ends: Collection[str], settings: OptimizerSettings
) -> list[Optimizer]:
    """Return the optimisers that together update every parameter.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of each
    matrix but those in `ends` (see `end_names`). Its step is scaled to the root mean square of AdamW's
    (arXiv:2502.16982, section 2.2), so that one learning rate serves both.
    """
    optimizers: list[Optimizer] = []
    by_muon: dict[str, Parameter] = {}
    if settings.name == "muon":
        by_muon = {name: p for name, p in parameters.items() if p.ndim == 2 and name not in ends}
        optimizers.append(
            BatchedMuon(
                list(by_muon.values()),
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
            )
        )
    return [*optimizers, _adamw([p for name, p in parameters.items() if name not in by_muon], settings)]


def end_names(model: PreTrainedModel) -> set[str]:
    """Return the names of the parameters of the embedding and the output head."""
    ends = [end for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None]
    ids = {id(parameter) for end in ends for parameter in end.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def _adamw(parameters: list[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Return AdamW with weight decay on matrices only."""
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


class BatchedMuon(torch.optim.Muon):
    """Same update and state as `torch.optim.Muon`, with the step size matched to AdamW's.

    All matrices of one shape are updated at once, which takes a third of the time for small matrices. Of
    sharded matrices each rank gathers the whole, and updates its own shard.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        updates: list[Tensor] = []
        for parameter in parameters:
            state, gradient = self.state[parameter], cast("Tensor", parameter.grad)
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(buffer, momentum) if group["nesterov"] else buffer)
        whole = torch.stack([gather(update) for update in updates])
        directions = orthogonalised(whole, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = lr * 0.2 * max(parameters[0].shape) ** 0.5  # equal to the RMS of AdamW's updates
        for parameter, direction in zip(parameters, directions, strict=True):
            own = _part_of(direction, parameter).to(parameter.device)
            parameter.mul_(1 - lr * group["weight_decay"]).add_(own, alpha=-rate)


def _part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of `whole`, which all ranks hold, laid out as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def orthogonalised(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return [N, A, B]: each matrix with singular values near 1, by Newton-Schulz steps.

    In bfloat16 on an accelerator; in float32 on a CPU, where few have instructions for products of bfloat16
    and the others take ten times as long. The quintic iteration of Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon/).
    """
    linear, cubic, quintic = coefficients
    x = matrices.float() if matrices.device.type == "cpu" else matrices.bfloat16()
    tall = x.size(1) > x.size(2)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if tall else x


def learning_rate(step: int, total_steps: int, settings: OptimizerSettings) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total_steps`.

    Rises linearly to `lr` at step `warmup_steps`, follows the schedule, and keeps the final value afterwards.
    Example: lr 1.0, 4 warm-up steps: 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, ...
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    left = 1 - min(done, 1.0)
    if settings.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return settings.lr * (settings.final_lr_fraction + (1 - settings.final_lr_fraction) * left)
