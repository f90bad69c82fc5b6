"""The routers of a mixture of experts (MoE) in transformers, and which experts they choose.

A router returns (logits [T, experts], weights [T, k], indices [T, k]) for the T tokens of a layer's input.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hone.types import UNKNOWN_EXPERT, Routing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def find_routers(model: PreTrainedModel) -> dict[int, nn.Module]:
    """Return the routers of `model` by the number of their layer; empty for a dense model."""
    found: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if layer and type(module).__name__.lower().endswith("topkrouter"):
            found[int(layer[1])] = module
    return found


def routing_shape(model: PreTrainedModel, routers: Mapping[int, nn.Module]) -> tuple[int, int]:
    """Return the number of layers, those without a router included, and of experts per token."""
    router: Any = next(iter(routers.values()))
    return int(model.config.get_text_config().num_hidden_layers), int(router.top_k)


@contextmanager
def chosen_experts(routers: Mapping[int, nn.Module]) -> Generator[dict[int, Tensor]]:
    """Yield a dictionary into which forward passes inside the context put layer -> indices, int64 [T, k].

    Only those of this thread: another one may compute with the same model.
    """
    chosen: dict[int, Tensor] = {}
    thread = threading.get_ident()

    def hook_of(layer: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
            if threading.get_ident() == thread:
                chosen[layer] = output[2].detach()

        return hook

    handles = [router.register_forward_hook(hook_of(layer)) for layer, router in routers.items()]
    try:
        yield chosen
    finally:
        for handle in handles:
            handle.remove()


def as_routing(chosen: Mapping[int, Tensor], shape: tuple[int, int], experts: int) -> Routing:
    """Return [T, layers, k] from the indices [T, k] of the layers with a router."""
    layers, k = shape
    first = next(iter(chosen.values()))
    dtype = torch.int8 if experts <= np.iinfo(np.int8).max + 1 else torch.int16
    routing = torch.full((len(first), layers, k), UNKNOWN_EXPERT, dtype=dtype, device=first.device)
    for layer, indices in chosen.items():
        routing[:, layer] = indices.to(dtype)
    return routing.cpu().numpy()
