"""Attention of transformers' models over forests, through its attention registry.

`use_forest_attention` switches a model to the attention function of this module. A forward pass that gives
the keyword argument `hone_attention` attends with it; any other pass runs transformers' SDPA as before, so an
engine may share the model. The argument reaches every attention layer, also below activation checkpointing.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hone.train.block_attention import BlockAttention
from hone.train.errors import TrainError
from hone.train.flex import FlexAttention
from hone.train.forest import Forest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "hone_forest"
_CHANGES = ("softcap", "s_aux", "position_bias")  # what some models add to attention, and we do not compute


class AttendFunction(Protocol):
    """Attention of the tokens of one pass."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """Return [1, H, T, D] from query [1, H, T, D] and key, value [1, H_kv, T, D].

        A query attends to the last `window` tokens of its path; None: to all of them.
        """
        ...


def attention_over(forest: Forest, device: torch.device) -> AttendFunction:
    """Return the attention of the tokens of `forest` to their paths on `device`."""
    if device.type == "cpu":
        return BlockAttention(forest)
    if device.type == "cuda":
        return FlexAttention(forest, device)
    return DenseAttention(forest, device)


class DenseAttention:
    """SDPA with a mask of U x U booleans, for devices without a better way (MPS)."""

    def __init__(self, forest: Forest, device: torch.device) -> None:
        segments = forest.ends - forest.starts
        index = torch.arange(len(forest.tokens), device=device)
        last = torch.from_numpy(forest.subtree_ends.repeat(segments)).to(device)
        self._positions = torch.from_numpy(forest.position_ids).to(device)
        self._visible = (index[None] <= index[:, None]) & (index[:, None] < last[None])
        self._windowed: dict[int, Tensor] = {}

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        """See `AttendFunction`; `layer` is unused."""
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mask = self._visible if window is None else self._within(window)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    def _within(self, window: int) -> Tensor:
        if window not in self._windowed:
            distance = self._positions[:, None] - self._positions[None]
            self._windowed[window] = self._visible & (distance < window)
        return self._windowed[window]


def use_forest_attention(model: PreTrainedModel) -> None:
    """Register the attention function and switch `model` to it. Raises TrainError if the model cannot."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    require_forest_attention(model)


def require_forest_attention(model: PreTrainedModel) -> None:
    """Raise TrainError if the model does not use the attention function of this module."""
    if model.config.get_text_config()._attn_implementation != NAME:  # pyright: ignore[reportPrivateUsage]
        raise TrainError(
            f"{type(model).__name__} does not use the attention that packed samples need: choose a model on "
            "transformers' attention registry, and do not change its attn_implementation during training"
        )


def pass_arguments(attend: AttendFunction, device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments of a decoder that make it attend with `attend`.

    The mask of one element stops the model from building one: transformers takes a mask with four dimensions
    as it is, and the attention function ignores it.
    """
    return {
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        "hone_attention": attend,
        "use_cache": False,
    }


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    hone_attention: AttendFunction | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the output [B, T, H, D] of a layer; the signature is that of transformers."""
    if hone_attention is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    changes = [name for name in _CHANGES if kwargs.get(name) is not None]
    if changes or kwargs.get("dropout") or query.shape[-1] != value.shape[-1]:
        reason = changes[0] if changes else "dropout" if kwargs.get("dropout") else "values of another width"
        raise TrainError(
            f"{type(module).__name__} uses attention with {reason}, which packed samples do not support: "
            "choose a model with plain causal attention"
        )
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    layer: Any = getattr(module, "layer_idx", 0)
    out = hone_attention(query, key, value, scale=scale, window=kwargs.get("sliding_window"), layer=layer)
    return out.transpose(1, 2).contiguous(), None
