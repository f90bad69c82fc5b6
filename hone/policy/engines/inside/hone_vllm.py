"""Loaded into vLLM's workers (`--worker-extension-cls hone_vllm.WorkerExtension`); imports nothing of Hone.

`hone_digests` proves which weights a worker computes with. vLLM fuses tensors (q, k and v; gate and up), pads
vocabularies and splits tensors among its workers; on a CPU it multiplies by a packed copy. So the digests are
of parts of the published tensors, read from what the layers use:

    a packed copy     the layer's product with the identity matrix, which is exact
    packed experts    the packed values in the order that the packing of 0, 1, 2, ... shows
    everything else   the parameter

`hone_repack`: vLLM's reload packs the weights that it loads, but not a head that shares the embedding's
weights, which keeps the old ones, and not the experts of a mixture on a CPU, whose kernel then reads unpacked
values as packed ones.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from layer_parts import (
    Part,
    adapter_digests,
    digests_of_parts,
    expert_digests,
    linear_parts,
    named,
    vocabulary_parts,
)
from tensor_digest import as_matrix
from torch import Tensor

_IDENTITY_ROWS = 512  # inputs whose weights are read at once from a packed copy


class WorkerExtension:
    model_runner: Any  # the worker's

    def hone_repack(self) -> int:
        """Pack the weights again that a reload leaves unpacked; return the number of layers."""
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        modules = list(self.model_runner.get_model().modules())
        experts = [m for m in modules if packed_experts(m) is not None]
        for layer in experts:
            packed_experts(layer).process_weights_after_loading(layer)
        heads = [m for m in modules if isinstance(m, ParallelLMHead)]
        packed = [head for head in heads if hasattr(head, "cpu_linear")]
        for head in packed:
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return len(packed) + len(experts)

    def hone_digests(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return [row, column, rows, columns, dtype, digest] of each part of the tensors `names`, by tensor.

        A tensor that this worker does not hold, or whose layout is unknown, is missing.
        """
        with torch.inference_mode():
            return digests_of(self.model_runner.get_model(), names)

    def hone_adapter_digests(self, rank: int) -> dict[str, list[Any]]:
        """Return what `hone_digests` does, of the A and B of the loaded adapters of rank `rank`."""
        with torch.inference_mode():
            return adapter_digests_of(self.model_runner.get_model(), rank)


def adapter_digests_of(model: Any, rank: int) -> dict[str, list[Any]]:
    """Return the parts of the adapters in vLLM's first slot, by peft's names (see `hone_digests`).

    vLLM pads A and B to its largest rank, and multiplies B by alpha / rank, which is 1 in published files.
    """
    from vllm.model_executor.layers.linear import LinearBase

    found: dict[str, list[Any]] = {}
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        if not hasattr(layer, "lora_a_stacked") or not isinstance(layer.base_layer, LinearBase):
            continue
        parts = linear_parts(path, layer.base_layer, packed)
        if len(parts) != len(layer.lora_a_stacked):
            continue
        for part, a, b in zip(parts, layer.lora_a_stacked, layer.lora_b_stacked, strict=True):
            rows = part.stop - part.start
            digests = adapter_digests(part, a[0, 0, :rank], b[0, 0, :rows, :rank])
            found |= {name: [entry] for name, entry in digests}
    return found


def digests_of(model: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the parts of the published tensors `names` that `model` holds (see `hone_digests`)."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    mapper = mapper.get_rename_mapper() if mapper is not None else None  # without the fusing of names
    own = {name: (mapper.map_name(name) if mapper is not None else name) for name in names}
    wanted = {held: name for name, held in own.items() if held is not None}
    found: dict[str, list[Any]] = {}
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules(remove_duplicate=False):
        for held, entry in _layer_digests(path.removesuffix(".base_layer"), layer, packed):
            if held in wanted:
                found.setdefault(wanted[held], []).append(entry)
    return found


def _layer_digests(
    path: str, layer: Any, packed: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the digest of each part of a published tensor among a layer's own parameters."""
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        UnquantizedEmbeddingMethod,
        VocabParallelEmbedding,
    )

    if not isinstance(layer, LinearBase | VocabParallelEmbedding):
        if type(layer).__name__ == "RoutedExperts":  # its layout depends on the kernel
            yield from _expert_digests(path, layer)
            return
        for name, parameter in layer.named_parameters(recurse=False):
            whole = Part(name=f"{path}.{name}", start=0, stop=as_matrix(parameter).shape[0])
            yield from digests_of_parts([(0, as_matrix(parameter))], [whole])
        return
    if not isinstance(layer.quant_method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod):
        return
    vocabulary = isinstance(layer, VocabParallelEmbedding)
    parts = vocabulary_parts(path, layer) if vocabulary else linear_parts(path, layer, packed)
    yield from digests_of_parts(_blocks(layer), [named(part, "weight") for part in parts])
    if getattr(layer, "bias", None) is not None:
        # A packed layer may keep its bias in float32: the published one has the type of the model.
        bias = as_matrix(cast("Tensor", layer.bias).to(layer.params_dtype))
        yield from digests_of_parts([(0, bias)], [named(part, "bias") for part in parts])


def packed_experts(layer: Any) -> Any:
    """Return the kernel of a mixture's experts that are packed for a CPU; None for any other layer."""
    if type(layer).__name__ != "RoutedExperts":
        return None
    kernel: Any = getattr(getattr(layer.quant_method, "moe_kernel", None), "fused_experts", None)
    return kernel if hasattr(kernel, "isa") and not kernel._use_zentorch else None


def _expert_digests(path: str, layer: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digests of packed experts: of w13, gate above up, both padded, and w2, whose inputs are."""
    kernel, parallel = packed_experts(layer), layer.moe_config.moe_parallel_config
    if kernel is None or parallel.use_ep:
        return
    size: int = layer.moe_config.intermediate_size_per_partition  # of this worker, without padding
    first = parallel.tp_rank * size
    parent = path.removesuffix(".routed_experts")
    for number, (w13, w2) in enumerate(zip(layer.w13_weight, layer.w2_weight, strict=True)):
        matrices = _unpacked(w13, kernel.isa), _unpacked(w2, kernel.isa)
        yield from expert_digests(f"{parent}.{number}", *matrices, size=size, first=first)


def _unpacked(packed: Tensor, isa: str) -> Tensor:
    """Return the matrix of one expert from its packed values."""
    return packed.flatten()[_packed_places(*packed.shape, packed.dtype, isa)].view(packed.shape)


@lru_cache(maxsize=4)
def _packed_places(rows: int, columns: int, dtype: torch.dtype, isa: str) -> Tensor:
    """Return where each value of a matrix [rows, columns] is in its packed form, int64 [rows * columns]."""
    from vllm._custom_ops import cpu_prepack_moe_weight

    index = torch.arange(rows * columns)
    origin = torch.zeros_like(index)
    for shift in range(0, (rows * columns).bit_length(), 8):  # a bfloat16 holds no more than 8 bits exactly
        digits = (index >> shift & 255).to(dtype).view(1, rows, columns)
        origin += cpu_prepack_moe_weight(digits, isa).flatten().to(torch.int64) << shift
    return torch.empty_like(index).scatter_(0, origin, index)


def _blocks(layer: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield the matrix that a layer computes with in blocks of columns, each with its first column."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    lookup = isinstance(layer, VocabParallelEmbedding) and not isinstance(layer, ParallelLMHead)
    if lookup or not hasattr(layer, "cpu_linear"):
        yield 0, cast("Tensor", layer.weight)
        return
    inputs = getattr(layer, "input_size_per_partition", layer.input_size)  # absent where nothing is split
    dtype = layer.params_dtype
    for first in range(0, inputs, _IDENTITY_ROWS):
        count = min(_IDENTITY_ROWS, inputs - first)
        unit = torch.zeros(count, inputs, dtype=dtype)
        unit[torch.arange(count), first + torch.arange(count)] = 1.0
        yield first, layer.quant_method.apply(layer, unit, None).to(dtype).t()
