"""Memory of activations: layers computed again for the backward pass, or kept in host memory."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hone.train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_KEEP_BYTES = 1 << 14  # smaller tensors are not worth a transfer


@contextmanager
def checkpointed_layers(
    model: PreTrainedModel, recomputing: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Generator[None]:
    """Keep only the input of each decoder layer in forward passes inside the context.

    The backward pass computes each layer again inside a context that `recomputing` makes.
    transformers checkpoints a layer only in training mode. The context switches the layers alone and not the
    modules in them, so dropout stays off; it must be left before an engine generates with the same model.
    Raises TrainError if the model has no layers that support it.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise TrainError(
            f"{type(model).__name__} does not support activation checkpointing: set "
            "memory.activation_checkpointing = false"
        )
    function = functools.partial(
        checkpoint, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputing())
    )
    try:
        for layer in layers:
            layer.training, layer.gradient_checkpointing = True, True
            layer._gradient_checkpointing_func = function
        yield
    finally:
        for layer in layers:
            layer.training, layer.gradient_checkpointing = False, False


@contextmanager
def offloaded_activations(model: PreTrainedModel) -> Generator[None]:
    """Move what forward passes inside the context save for the backward pass to host memory.

    Copies go through pinned memory from a GPU; on a CPU they are plain copies. The weights of `model` and
    small tensors stay where they are. Best together with `checkpointed_layers`: a tensor that several
    operations save is copied for each of them.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
        large = tensor.is_floating_point() and tensor.numel() * tensor.itemsize >= _KEEP_BYTES
        if not large or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor
        kept = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, kept.copy_(tensor)

    def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
        device, kept = packed
        return kept.to(device, non_blocking=True) if kept.device != device else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
