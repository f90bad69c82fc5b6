"""The sender's side of publishing: which tensors an engine gets, by which names, and their digests.

hub_layers(model)            layer by layer: (name in a Hugging Face checkpoint, whole tensor)
folder_fingerprint(folder)   the digests of a folder that servers load
published(model)             what servers receive without a folder
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hone.policy.engines.fingerprint import Fingerprint, TensorDigest
from hone.policy.engines.inside.tensor_digest import as_matrix, tensor_digest
from hone.policy.engines.nccl import Manifest, PublishedWeights
from hone.train.sharding import gather

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def hub_layers(
    model: PreTrainedModel, *, dtype: torch.dtype | None = None
) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield each layer's tensors as a Hugging Face checkpoint has them: names, fused experts split.

    Tensors outside the layers come as layers of their own. Tied tensors come once. A sharded tensor is
    gathered, which every rank must do in the same order.

    Args:
        dtype: that floating-point tensors are rounded to; None: their own.
    """

    def whole(tensor: Tensor) -> Tensor:
        return gather(tensor.detach().to(_published_dtype(tensor, dtype)))

    for layer in _layers(model):
        yield list(_converted(model, layer, whole).items())


def manifest_of(model: PreTrainedModel, *, dtype: torch.dtype | None = None) -> Manifest:
    """Return names, dtypes and shapes of the tensors of `hub_layers`, in its order; gathers nothing."""

    def without_values(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=_published_dtype(tensor, dtype), device="meta")

    layers = [_converted(model, layer, without_values) for layer in _layers(model)]
    tensors = {name: tensor for layer in layers for name, tensor in layer.items()}
    return {
        "names": list(tensors),
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


def tied_names(model: PreTrainedModel) -> dict[str, str]:
    """Return the further names of tied tensors with the name that each is published by."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        other = first.setdefault(id(tensor), name)
        if other != name:
            tied[name] = other
    return tied


def digest_of(tensor: Tensor) -> TensorDigest:
    """Return the digest of a whole tensor, computed on the tensor's own device."""
    rows, columns = as_matrix(tensor).shape
    return TensorDigest(
        rows=rows,
        columns=columns,
        dtype=str(tensor.dtype).removeprefix("torch."),
        digest=f"{tensor_digest(tensor):016x}",
    )


def fingerprint(model: PreTrainedModel) -> Fingerprint:
    """Return the fingerprint of the weights of `model`."""
    layers = hub_layers(model)
    return with_tied(model, {name: digest_of(tensor) for layer in layers for name, tensor in layer})


def with_tied(model: PreTrainedModel, tensors: Mapping[str, TensorDigest]) -> Fingerprint:
    """Return the fingerprint of the digests of `hub_layers`, which have tied tensors once."""
    tied = {name: tensors[other] for name, other in tied_names(model).items() if other in tensors}
    return Fingerprint(tensors={**tensors, **tied})


def folder_fingerprint(folder: Path) -> Fingerprint:
    """Return the fingerprint of the weights in a Hugging Face folder; the files hold tied tensors once."""
    from safetensors import safe_open

    tensors: dict[str, TensorDigest] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as held:
            tensors |= {name: digest_of(held.get_tensor(name)) for name in held.keys()}  # noqa: SIM118
    config = folder / "config.json"  # a folder of adapters has none
    tied = config.is_file() and json.loads(config.read_text()).get("tie_word_embeddings", False)
    if tied and EMBEDDING in tensors:
        tensors.setdefault(HEAD, tensors[EMBEDDING])
    return Fingerprint(tensors=tensors)


def published(model: PreTrainedModel) -> PublishedWeights:
    """Return what servers receive of the present weights of `model` without files."""
    return PublishedWeights(
        manifest=manifest_of(model),
        tensors=lambda: (tensor for layer in hub_layers(model) for _, tensor in layer),
        fingerprint=fingerprint(model),
    )


def _layers(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Return the model's own tensors, tied ones once, grouped by the layer number in their names."""
    tied = tied_names(model)
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in tied:
            number = re.match(r".*?\.\d+\.", name)
            layers.setdefault(number[0] if number else name, {})[name] = tensor
    return list(layers.values())


def _converted(
    model: PreTrainedModel, layer: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return a layer's whole tensors by their names in a checkpoint."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, {name: whole(tensor) for name, tensor in layer.items()})


def _published_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
