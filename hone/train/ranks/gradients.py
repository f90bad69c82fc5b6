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
from hone.train.sharding import local


def add_parts(parameters: Iterable[Parameter], world: World) -> None:
    """Add up the gradients of `parameters`, which each rank of a tensor group has a part of, over the group.

    Call once per optimiser step.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            part = local(parameter.grad)
            moved = part.to(world.device)  # NCCL has no collective for offloaded gradients
            dist.all_reduce(moved, group=world.mesh["tensor"].get_group())
            part.copy_(moved)


def add_whole(parameters: Iterable[Parameter], world: World) -> None:
    """Add up the gradients of `parameters`, which every rank holds whole, over all ranks; no gradient is 0.

    Each rank's gradient is that of its own passes, or of its own tokens of a pass. Call once per optimiser
    step. Invariant: the sums are equal on every rank, bit for bit, and so are the parameters.
    """
    held = list(parameters)
    if all(parameter.grad is None for parameter in held):
        return  # on every rank: all make the same number of passes
    flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in held])
    dist.all_reduce(flat, group=world.control if flat.device.type == "cpu" else None)
    for parameter, part in zip(held, flat.split([p.numel() for p in held]), strict=True):
        parameter.grad = part.view_as(parameter)


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


def shards_of(tensor: Tensor) -> int:
    """Return the number of different parts that a tensor is divided into."""
    if not isinstance(tensor, DTensor):
        return 1
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if not placement.is_replicate())
