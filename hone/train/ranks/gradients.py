"""The gradient norm over all ranks, and gradients that tensor parallelism leaves in parts.

`torch.nn.utils.clip_grad_norm_` refuses parameters on different meshes, which tensor parallelism makes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from hone.train.ranks.world import World


def add_parts(parameters: Iterable[Parameter], world: World) -> None:
    """Add up the gradients of `parameters`, which each rank of a tensor group has a part of, over the group.

    Call once per optimiser step.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(local(parameter.grad), group=world.mesh["tensor"].get_group())


def clip_gradients(parameters: Iterable[Parameter], max_norm: float, world: World) -> float:
    """Scale the gradients down to `max_norm` over all parameters; return their norm before.

    Each shard counts once, however many ranks hold a copy of it. A norm that is not finite changes nothing.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = 0.0
    for gradient in gradients:
        share = local(gradient)
        squares += float(torch.linalg.vector_norm(share.double()) ** 2) / (world.size / shards_of(gradient))
    norm = math.sqrt(total) if (total := world.sum([squares])[0]) >= 0 else math.nan
    scale = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_
    if math.isfinite(norm) and scale < 1:
        for gradient in gradients:
            local(gradient).mul_(scale)
    return norm


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a distributed tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shards_of(tensor: Tensor) -> int:
    """Return the number of different parts that a tensor is divided into."""
    if not isinstance(tensor, DTensor):
        return 1
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if not placement.is_replicate())
