"""A plugin of SGLang (entry point group `sglang.srt.plugins`); imports nothing of Hone.

`/weights_checker` with the action `hone_digests:REQUEST` proves which weights a server computes with. REQUEST
is JSON: {"names": [published tensors], "adapter": "" or the name of loaded adapters}. The answer
has an entry for each worker, with the parts of these tensors that it holds, read from the parameters that its
layers multiply by:

    {"tensors": {name: [[row, column, rows, columns, dtype, digest], ...]}, "error": ""}

A tensor whose layout is unknown is missing: quantised, packed for AMX, experts in the order of FlashInfer's
kernels or with expert parallelism, weights that attention copies (MLA). Parts with rows that SGLang adds on a
CPU, where workers would share a head, do not make up the published tensor and prove nothing.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from layer_parts import (
    Part,
    adapter_digests,
    digests_of_parts,
    expert_digests,
    is_a,
    linear_parts,
    named,
    vocabulary_parts,
)
from tensor_digest import as_matrix

ACTION = "hone_digests:"
_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_UNQUANTIZED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
_KERNELS = ("use_triton_kernels", "use_flashinfer_trtllm_moe", "load_up_proj_weight_first")


def register() -> None:
    """Add the action; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    HookRegistry.register(f"{target}.check_weights", check_weights, HookType.AROUND)


def check_weights(original: Callable[[Any, Any], Any], manager: Any, request: Any) -> Any:
    """Return the answer of a group of workers; for an action of SGLang its own.

    Gathers the workers' parts itself: SGLang 0.5.15 cannot send the list that it makes of several workers.
    """
    from sglang.srt.managers.io_struct import CheckWeightsReqOutput

    if not request.action.startswith(ACTION):
        return original(manager, request)
    mine = worker_answer(manager.tp_worker.model_runner, request.action.removeprefix(ACTION))
    workers: list[Any] = [None] * torch.distributed.get_world_size(group=manager.tp_cpu_group)
    torch.distributed.all_gather_object(workers, mine, group=manager.tp_cpu_group)
    # SGLang itself reads `per_gpu_checksum`.
    payload = {"per_gpu_checksum": "", "workers": workers}
    return CheckWeightsReqOutput(success=True, message="", payload=payload)


def worker_answer(runner: Any, request: str) -> dict[str, Any]:
    """Return {"tensors": ..., "error": ...} for a request in JSON. Never raises: the other workers wait."""
    try:
        wanted = json.loads(request)
        with torch.inference_mode():
            tensors = requested_digests(runner, set(wanted["names"]), wanted["adapter"])
        return {"tensors": tensors, "error": ""}
    except Exception as failure:
        return {"tensors": {}, "error": f"{type(failure).__name__}: {failure}"}


def requested_digests(runner: Any, names: Collection[str], adapter: str) -> dict[str, list[Any]]:
    """Return the parts of the tensors `names` of a worker's model, or of the adapters named `adapter`."""
    if not names:
        return {}
    found: dict[str, list[Any]] = {}
    digests = adapter_parts(runner, adapter) if adapter else model_parts(runner.model, names)
    for name, entry in digests:
        if name in names:
            found.setdefault(name, []).append(entry)
    return found


def model_parts(model: Any, names: Collection[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digest of each part of a published tensor among the parameters of `model`."""
    packed = {**_PACKED, **getattr(model, "packed_modules_mapping", {})}
    packed = {last: parts for last, parts in packed.items() if not _published_fused(last, names)}
    for at, layer in model.named_modules(remove_duplicate=False):
        path = at.removesuffix(".base_layer")  # beneath adapters
        if is_a(layer, "FusedMoE"):
            yield from _expert_parts(path, layer)
        elif is_a(layer, "LinearBase") or is_a(layer, "VocabParallelEmbedding"):
            if not hasattr(model.get_submodule(path.rpartition(".")[0]), "w_kc"):  # MLA's copies
                yield from _layer_parts(path, layer, packed)
        elif not is_a(layer, "BaseLayerWithLoRA"):  # which has the parameters of the layer beneath
            for name, parameter in layer.named_parameters(recurse=False):
                matrix = as_matrix(parameter)
                whole = Part(name=f"{path}.{name}", start=0, stop=matrix.shape[0])
                yield from digests_of_parts([(0, matrix)], [whole])


def _published_fused(last: str, names: Iterable[str]) -> bool:
    return any(name.endswith(f".{last}.weight") for name in names)


def _layer_parts(
    path: str, layer: Any, packed: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digests of the parts of a linear layer, an embedding or a head, if its layout is known."""
    packs = getattr(layer, "use_intel_amx_backend", False)
    presharded = getattr(layer, "use_presharded_weights", False)
    if packs or presharded or type(layer.quant_method).__name__ not in _UNQUANTIZED:
        return
    if is_a(layer, "VocabParallelEmbedding"):
        parts = vocabulary_parts(path, layer)
    elif _splits_its_own_way(path, layer, packed):
        return
    else:
        parts = linear_parts(path, layer, packed)
    for parameter in ("weight", "bias"):
        tensor = getattr(layer, parameter, None)
        if tensor is not None:
            matrix = as_matrix(tensor)
            yield from digests_of_parts([(0, matrix)], [named(part, parameter) for part in parts])


def _splits_its_own_way(path: str, layer: Any, packed: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a model may split a fused layer among workers in another way than SGLang's layers do."""
    fused = len(getattr(layer, "output_partition_sizes", ())) > 1
    known = path.rpartition(".")[2] in {*packed, *_PACKED}
    return fused and not known and layer.tp_size > 1


def _expert_parts(path: str, layer: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digests of the experts of a mixture (w13: gate above up; w2), if the layout is known."""
    method = layer.quant_method
    reordered = any(getattr(method, kernel, False) for kernel in _KERNELS) or torch.version.hip is not None
    packs = getattr(layer, "use_intel_amx_backend", False) or layer.use_presharded_weights
    plain = type(method).__name__ == "UnquantizedFusedMoEMethod" and layer.moe_runner_config.is_gated
    if reordered or packs or not plain or layer.moe_ep_size > 1 or layer.num_fused_shared_experts:
        return
    size: int = layer.intermediate_size_per_partition
    first = layer.moe_tp_rank * size
    for index, number in enumerate(expert_numbers(layer)):
        w13, w2 = layer.w13_weight[index], layer.w2_weight[index]
        yield from expert_digests(f"{path}.{number}", w13, w2, size=size, first=first)


def expert_numbers(layer: Any) -> list[int]:
    """Return the published number of each expert in the order in which a layer holds them.

    SGLang may hold experts in another order, and some of them twice, to balance the load.
    """
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    metadata = get_global_expert_location_metadata()
    if metadata is None:
        return list(range(layer.num_local_experts))
    return metadata.physical_to_logical_map[layer.layer_id].tolist()


def adapter_parts(runner: Any, name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the parts of the adapters `name` in SGLang's memory pool; none before a request has used them.

    SGLang multiplies the product by alpha / rank, which is 1 in published files.
    """
    manager = runner.lora_manager
    loaded = [key for key, held in manager.lora_refs.items() if held.lora_name == name]
    held = [key for key in loaded if key in manager.memory_pool.uid_to_buffer_id]
    if not held or manager.loras[held[0]].scaling != 1:
        return
    slot, rank = manager.memory_pool.uid_to_buffer_id[held[0]], manager.configs[held[0]].r
    packed = {**_PACKED, **getattr(runner.model, "packed_modules_mapping", {})}
    for path, layer in runner.model.named_modules():
        if not is_a(layer, "BaseLayerWithLoRA") or not is_a(layer.base_layer, "LinearBase"):
            continue
        a = getattr(layer, "A_buffer_qkv", getattr(layer, "A_buffer", None))
        b = getattr(layer, "B_buffer_qkv", getattr(layer, "B_buffer", None))
        parts = linear_parts(path, layer.base_layer, packed)
        if a is None or b is None or a.shape[-2] != len(parts) * b.shape[-1]:
            continue
        for index, part in enumerate(parts):
            rows = slice(index * rank, (index + 1) * rank)
            yield from adapter_digests(part, a[slot, rows], b[slot, part.start : part.stop, :rank])
