"""Tensors that ranks share (DTensors of torch.distributed)."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor


def gather(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor, on the device of the rank; any other tensor as it is.

    All ranks gather the same tensors in the same order. Shards in host memory are moved to the device first:
    NCCL has no collective for them.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    moved = cast("DTensor", tensor.to(tensor.device_mesh.device_type))
    return moved.full_tensor()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
