"""Rollout routing replay (R3, arXiv:2510.11370): the trainer uses the experts that the engine has chosen.

Rounding differs between an engine and the trainer, so their routers may choose different experts, and then
their log-probabilities differ by far more than rounding. With replay the trainer takes the engine's choice,
and computes the weights of the experts from its own router, so that the gradient still reaches the router.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from hone.policy.routing import find_routers, routing_shape
from hone.train.errors import TrainError
from hone.train.forest import Forest, path_to
from hone.types import UNKNOWN_EXPERT, Routing, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = 0.01  # of a weight that is computed again; a router of another kind differs by far more
_checked: WeakSet[nn.Module] = WeakSet()  # routers that weight their experts by a softmax


def merge_routing(forest: Forest, routings: Sequence[Routing | None]) -> Routing | None:
    """Return [U, layers, k], the experts of each position of `forest`; None if no branch has any.

    `routings` is parallel to the branches of the forest; each has that of at least the branch's tokens.
    A position that branches share has the experts of the first branch that knows them. Where none does, and
    at the end of a branch, which predicts no token, they are unknown.
    """
    known = [routing for routing in routings if routing is not None]
    if not known:
        return None
    merged = np.full((len(forest.tokens), *known[0].shape[1:]), UNKNOWN_EXPERT, np.result_type(*known))
    for predictors, routing in zip(forest.predictors, routings, strict=True):
        if routing is not None:
            path = path_to(forest, int(predictors[-1]))
            fresh = ~is_known(merged[path])
            merged[path[fresh]] = routing[1 : len(path) + 1][fresh]
    return merged


def is_known(routing: Routing) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return bool [T]: whether the experts of a position are known in any layer."""
    return (routing != UNKNOWN_EXPERT).any(axis=(1, 2))


def replayed_tokens(routings: Sequence[Routing | None]) -> int:
    """Return the number of positions of passes whose experts are known."""
    return sum(int(is_known(routing).sum()) for routing in routings if routing is not None)


def require_fitting(samples: Sequence[Sample], model: PreTrainedModel) -> None:
    """Raise TrainError if a sample was routed by a model of another shape than `model`."""
    routers = find_routers(model)
    for sample in samples:
        if sample.routing is None:
            continue
        found = f"rollout {sample.rollout_id} was routed to experts"
        advice = "train the model that sampled it, or set train.routing_replay = false"
        if not routers:
            raise TrainError(f"{found}, but {type(model).__name__} has no router: {advice}")
        layers, k = routing_shape(model, routers)
        router: Any = next(iter(routers.values()))
        if sample.routing.shape[1:] != (layers, k):
            had = "{} layers, {} experts per token".format(*sample.routing.shape[1:])
            raise TrainError(f"{found} of {had}, but the model has {layers} layers, {k} experts: {advice}")
        if int(sample.routing.max(initial=0)) >= int(router.num_experts):
            highest = int(sample.routing.max())
            raise TrainError(f"{found} up to {highest}, but the model has {router.num_experts}: {advice}")


@contextmanager
def replayed_routing(model: PreTrainedModel, routing: Tensor | None) -> Generator[None]:
    """Make the routers of `model` choose the experts `routing` in forward passes of this thread inside.

    `routing` [T, layers, k] are indices; the router's own choice stays where one is UNKNOWN_EXPERT. Raises
    TrainError for a router that does not weight its experts by a softmax.
    """
    routers: Mapping[int, nn.Module] = {} if routing is None else find_routers(model)
    thread = threading.get_ident()

    def hook_of(layer: int) -> Any:
        assert routing is not None
        recorded = routing[:, layer]

        def hook(router: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
            return _replayed(router, output, recorded) if threading.get_ident() == thread else None

        return hook

    handles = [router.register_forward_hook(hook_of(layer)) for layer, router in routers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replayed(
    router: nn.Module, output: tuple[Tensor, Tensor, Tensor], recorded: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of a router with the experts `recorded` [T, k] where they are known."""
    logits, weights, chosen = output
    if router not in _checked:
        _require_softmax(router, logits[:1], weights[:1], chosen[:1])
        _checked.add(router)
    known = (recorded != UNKNOWN_EXPERT).all(-1, keepdim=True)
    chosen = torch.where(known, recorded.long(), chosen)
    return logits, _weights(router, logits, chosen).to(weights.dtype), chosen


def _weights(router: nn.Module, logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the weights [T, k] of the experts `chosen`: as most routers do, from a softmax over all.

    A softmax over the chosen ones alone (Mixtral, gpt-oss) is the same as one over all, normalised.
    """
    weights = torch.softmax(logits, -1, dtype=torch.float32).gather(-1, chosen)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights


@torch.no_grad()
def _require_softmax(router: nn.Module, logits: Tensor, weights: Tensor, chosen: Tensor) -> None:
    """Raise TrainError unless a router's weights [T, k] are those of `_weights`."""
    difference = (_weights(router, logits, chosen) - weights.float()).abs().max().item()
    if not difference <= _TOLERANCE:
        raise TrainError(
            f"{type(router).__name__} weights its experts in another way than by a softmax, and differs by "
            f"{difference:.2g}: set train.routing_replay = false"
        )
