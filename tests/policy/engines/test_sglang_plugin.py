"""The plugin that proves an SGLang server's weights, on stand-ins for SGLang's layers.

A stand-in has the class name and the attributes of the layer in SGLang 0.5.15 that it stands for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hone.policy.engines.fingerprint import Comparison, Fingerprint, compare
from hone.policy.engines.managed_server import SGLANG_PLUGIN
from hone.policy.engines.sglang import DIGESTS
from hone.train.publish import digest_of

INSIDE = Path(__file__).parents[3] / "hone/policy/engines/inside"
HEADS, KV_HEADS, HEAD, WIDTH, INNER, WORDS, EXPERTS = 4, 1, 2, 6, 8, 11, 3
LAYER = "model.layers.0"


@pytest.fixture(scope="module")
def plugin() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INSIDE))
        import hone_sglang  # pyright: ignore[reportMissingImports]

        yield hone_sglang


@pytest.fixture(autouse=True)
def expert_location(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the order of experts: published numbers by layer and place."""
    location = SimpleNamespace(physical_to_logical_map=torch.arange(EXPERTS).view(1, -1))
    module = ModuleType("sglang.srt.eplb.expert_location")
    monkeypatch.setattr(module, "get_global_expert_location_metadata", lambda: location, raising=False)
    for name in ("sglang", "sglang.srt", "sglang.srt.eplb"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return location


class UnquantizedLinearMethod: ...


class UnquantizedEmbeddingMethod: ...


class UnquantizedFusedMoEMethod: ...


class Fp8LinearMethod: ...


class LinearBase(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None = None, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.clone()))
        self.quant_method: Any = UnquantizedLinearMethod()
        self.output_size = weight.shape[0]
        self.__dict__.update(attributes)


class ColumnParallelLinear(LinearBase): ...


class RowParallelLinear(LinearBase): ...


class VocabParallelEmbedding(LinearBase): ...


class FusedMoE(nn.Module): ...


class BaseLayerWithLoRA(nn.Module):
    def __init__(self, base_layer: Any, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.base_layer, self.A_buffer, self.B_buffer = base_layer, a, b
        self.weight = base_layer.weight


class Norm(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())


def published(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, WIDTH),
        f"{LAYER}.input_layernorm.weight": (WIDTH,),
        f"{LAYER}.self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
        f"{LAYER}.self_attn.k_proj.weight": (KV_HEADS * HEAD, WIDTH),
        f"{LAYER}.self_attn.v_proj.weight": (KV_HEADS * HEAD, WIDTH),
        f"{LAYER}.self_attn.q_proj.bias": (HEADS * HEAD,),
        f"{LAYER}.self_attn.k_proj.bias": (KV_HEADS * HEAD,),
        f"{LAYER}.self_attn.v_proj.bias": (KV_HEADS * HEAD,),
        f"{LAYER}.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
        f"{LAYER}.self_attn.o_proj.bias": (WIDTH,),
        f"{LAYER}.mlp.gate.weight": (EXPERTS, WIDTH),
    }
    for expert in range(EXPERTS):
        name = f"{LAYER}.mlp.experts.{expert}"
        shapes |= {f"{name}.{kind}_proj.weight": (INNER, WIDTH) for kind in ("gate", "up")}
        shapes[f"{name}.down_proj.weight"] = (WIDTH, INNER)
    chance = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=chance).to(dtype) for name, shape in shapes.items()}
    return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}  # tied


def proof(tensors: Mapping[str, Tensor]) -> Fingerprint:
    return Fingerprint(tensors={name: digest_of(tensor) for name, tensor in tensors.items()})


def share(tensor: Tensor, rank: int, of: int, dim: int = 0) -> Tensor:
    return tensor.chunk(of, dim)[rank]


def worker(tensors: Mapping[str, Tensor], rank: int = 0, of: int = 1, order: list[int] | None = None) -> Any:
    """Return the model of one worker as SGLang loads it; there are fewer key and value heads than workers."""
    attention = {n: t for n, t in tensors.items() if ".self_attn." in n}
    model, layer = nn.Module(), nn.Module()
    parallel = {"tp_rank": rank, "tp_size": of}
    layer.input_layernorm = Norm(tensors[f"{LAYER}.input_layernorm.weight"])
    layer.self_attn, layer.mlp = nn.Module(), nn.Module()

    def fused(parameter: str) -> Tensor:
        q, k, v = (attention[f"{LAYER}.self_attn.{name}_proj.{parameter}"] for name in "qkv")
        return torch.cat([share(q, rank, of), k, v])

    sizes = [HEADS * HEAD // of, KV_HEADS * HEAD, KV_HEADS * HEAD]
    layer.self_attn.qkv_proj = ColumnParallelLinear(
        fused("weight"),
        fused("bias"),
        output_partition_sizes=sizes,
        num_kv_head_replicas=of // KV_HEADS,
        **parallel,
    )
    layer.self_attn.o_proj = RowParallelLinear(
        share(attention[f"{LAYER}.self_attn.o_proj.weight"], rank, of, 1),
        attention[f"{LAYER}.self_attn.o_proj.bias"],
        input_size_per_partition=HEADS * HEAD // of,
        **parallel,
    )
    layer.mlp.gate = LinearBase(tensors[f"{LAYER}.mlp.gate.weight"])
    layer.mlp.experts = experts(tensors, rank, of, order or list(range(EXPERTS)))
    model.layers = nn.ModuleList([layer])
    model.embed_tokens = vocabulary(tensors["model.embed_tokens.weight"], rank, of)
    whole = nn.Module()
    whole.model, whole.lm_head = model, model.embed_tokens
    return whole


def vocabulary(weight: Tensor, rank: int, of: int) -> VocabParallelEmbedding:
    padded = torch.zeros(16, WIDTH, dtype=weight.dtype)
    padded[:WORDS] = weight
    first, stop = (min(WORDS, 16 // of * at) for at in (rank, rank + 1))
    layer = VocabParallelEmbedding(
        share(padded, rank, of),
        shard_indices=SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=stop),
    )
    layer.quant_method = UnquantizedEmbeddingMethod()
    return layer


def experts(tensors: Mapping[str, Tensor], rank: int, of: int, order: list[int]) -> FusedMoE:
    layer = FusedMoE()

    def held(kind: str, dim: int) -> list[Tensor]:
        name = f"{LAYER}.mlp.experts.{{}}.{kind}_proj.weight"
        return [share(tensors[name.format(number)], rank, of, dim) for number in order]

    pairs = zip(held("gate", 0), held("up", 0), strict=True)
    layer.w13_weight = nn.Parameter(torch.stack([torch.cat(pair) for pair in pairs]))
    layer.w2_weight = nn.Parameter(torch.stack(held("down", 1)))
    layer.quant_method = UnquantizedFusedMoEMethod()
    layer.moe_runner_config = SimpleNamespace(is_gated=True)
    layer.use_presharded_weights = False
    layer.moe_ep_size, layer.num_fused_shared_experts, layer.layer_id = 1, 0, 0
    layer.moe_tp_rank, layer.intermediate_size_per_partition = rank, INNER // of
    layer.num_local_experts = len(order)
    return layer


def compared(plugin: Any, tensors: Mapping[str, Tensor], *models: Any) -> Comparison:
    request = json.dumps({"names": list(tensors), "adapter": ""})
    answers = [plugin.worker_answer(SimpleNamespace(model=model), request) for model in models]
    assert [answer["error"] for answer in answers] == [""] * len(models)
    return compare(proof(tensors), [answer["tensors"] for answer in answers])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("workers", [1, 2])
def test_right_weights_are_proven(plugin: Any, dtype: torch.dtype, workers: int):
    tensors = published(dtype)
    models = [worker(tensors, rank, workers) for rank in range(workers)]
    assert compared(plugin, tensors, *models) == Comparison(differing=[], unproven=[], reasons=[])


def test_shard_of_an_old_version_is_found_in_any_tensor(plugin: Any):
    new, old = published(), published(seed=1)
    for name in new.keys() - {"lm_head.weight"}:
        other = worker(new | {name: old[name], "lm_head.weight": old[name]}, 1, 2)
        tied = {"lm_head.weight"} if name == "model.embed_tokens.weight" else set()
        assert set(compared(plugin, new, worker(new, 0, 2), other).differing) == {name} | tied


def test_exchanged_tensors_are_found(plugin: Any):
    tensors = published()
    gate, up = (f"{LAYER}.mlp.experts.1.{kind}_proj.weight" for kind in ("gate", "up"))
    exchanged = tensors | {gate: tensors[up], up: tensors[gate]}
    assert set(compared(plugin, tensors, worker(exchanged)).differing) == {gate, up}


def test_experts_in_another_order_are_proven(plugin: Any, expert_location: SimpleNamespace):
    tensors, order = published(), [2, 0, 1, 0]
    expert_location.physical_to_logical_map = torch.tensor([order])
    assert compared(plugin, tensors, worker(tensors, order=order)).proven


def test_tensors_that_are_published_fused_are_proven(plugin: Any):
    attention = f"{LAYER}.self_attn"
    tensors = published()
    whole = torch.cat([tensors[f"{attention}.{name}_proj.weight"] for name in "qkv"])
    assert compared(plugin, {f"{attention}.qkv_proj.weight": whole}, worker(tensors)).proven
    models = [worker(tensors, rank, 2) for rank in range(2)]
    assert compared(plugin, {f"{attention}.qkv_proj.weight": whole}, *models).proven


def make(path: str, **attributes: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        layer = model.get_submodule(path)
        for name, value in attributes.items():
            setattr(layer, name, value)

    return change


QKV, MIXTURE = f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.mlp.experts"


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (make(QKV, use_intel_amx_backend=True), ".q_proj."),
        (make(QKV, quant_method=Fp8LinearMethod()), ".q_proj."),
        (make(QKV, use_presharded_weights=True), ".q_proj."),
        (make(f"{LAYER}.self_attn", w_kc=torch.ones(1)), ".q_proj."),
        (make("lm_head", use_intel_amx_backend=True), "lm_head."),
        (make(MIXTURE, use_intel_amx_backend=True), ".experts."),
        (make(MIXTURE, quant_method=Fp8LinearMethod()), ".experts."),
        (make(MIXTURE, quant_method=SimpleNamespace()), ".experts."),
        (make(MIXTURE, moe_ep_size=2), ".experts."),
        (make(MIXTURE, num_fused_shared_experts=1), ".experts."),
        (make(MIXTURE, moe_runner_config=SimpleNamespace(is_gated=False)), ".experts."),
        (make(f"{MIXTURE}", use_presharded_weights=True), ".experts."),
    ],
)
def test_unknown_layout_is_unproven_not_wrong(plugin: Any, change: Callable[[Any], None], missing: str):
    tensors = published()
    model = worker(tensors)
    change(model)
    found = compared(plugin, tensors, model)
    assert not found.differing
    assert any(missing in name for name in found.unproven)
    assert f"{LAYER}.input_layernorm.weight" not in found.unproven


@pytest.mark.parametrize(
    "kernel", ["use_triton_kernels", "use_flashinfer_trtllm_moe", "load_up_proj_weight_first"]
)
def test_experts_in_the_order_of_another_kernel_are_unproven(plugin: Any, kernel: str):
    tensors = published()
    model = worker(tensors)
    setattr(model.get_submodule(MIXTURE).quant_method, kernel, True)
    found = compared(plugin, tensors, model)
    assert not found.differing
    assert {name for name in tensors if ".experts." in name} == set(found.unproven)


def test_vector_that_is_split_in_an_unknown_way_is_unproven(plugin: Any):
    tensors = published()
    models = [worker(tensors, rank, 2) for rank in range(2)]
    for rank, model in enumerate(models):
        model.model.layers[0].input_layernorm = Norm(
            share(tensors[f"{LAYER}.input_layernorm.weight"], rank, 2)
        )
    found = compared(plugin, tensors, *models)
    assert (found.differing, found.unproven) == ([], [f"{LAYER}.input_layernorm.weight"])


def test_fused_layer_of_a_models_own_is_unproven_on_two_workers(plugin: Any):
    tensors = {f"{LAYER}.mixer.in_proj.weight": torch.randn(8, WIDTH)}

    def model(rank: int, of: int) -> Any:
        whole = worker(published())
        whole.model.layers[0].mixer = nn.Module()
        (weight,) = tensors.values()
        whole.model.layers[0].mixer.in_proj = ColumnParallelLinear(
            share(weight, rank, of), output_partition_sizes=[4 // of] * 2, tp_rank=rank, tp_size=of
        )
        return whole

    assert compared(plugin, tensors, model(0, 1)).proven
    assert compared(plugin, tensors, model(0, 2), model(1, 2)).unproven


RANK, MAX_RANK, SLOT = 2, 4, 1
ADAPTED = "base_model.model.model.layers.0.self_attn"


def adapters(seed: int = 0) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    sizes = {"q_proj": HEADS * HEAD, "k_proj": KV_HEADS * HEAD, "v_proj": KV_HEADS * HEAD}
    tensors: dict[str, Tensor] = {}
    for name, outputs in (sizes | {"o_proj": WIDTH}).items():
        inputs = HEADS * HEAD if name == "o_proj" else WIDTH
        tensors[f"{ADAPTED}.{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=chance)
        tensors[f"{ADAPTED}.{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=chance)
    return tensors


def adapted_runner(tensors: Mapping[str, Tensor], rank: int = 0, of: int = 1) -> Any:
    """Return a worker with adapters as SGLang's memory pool holds them: A stacked, B beside unused ranks."""
    model = worker(published(), rank, of)
    attention = model.model.layers[0].self_attn
    a, b = torch.randn(2, 3 * MAX_RANK, WIDTH), torch.randn(2, attention.qkv_proj.output_size, MAX_RANK)
    names = [f"{ADAPTED}.{name}_proj" for name in "qkv"]
    a[SLOT, : 3 * RANK] = torch.cat([tensors[f"{name}.lora_A.weight"] for name in names])
    q, k, v = (tensors[f"{name}.lora_B.weight"] for name in names)
    b[SLOT, :, :RANK] = torch.cat([share(q, rank, of), k, v])
    attention.qkv_proj = BaseLayerWithLoRA(attention.qkv_proj, a, b)
    output = torch.randn(2, MAX_RANK, HEADS * HEAD // of), torch.randn(2, WIDTH, MAX_RANK)
    output[0][SLOT, :RANK] = share(tensors[f"{ADAPTED}.o_proj.lora_A.weight"], rank, of, 1)
    output[1][SLOT, :, :RANK] = tensors[f"{ADAPTED}.o_proj.lora_B.weight"]
    attention.o_proj = BaseLayerWithLoRA(attention.o_proj, *output)
    manager = SimpleNamespace(
        lora_refs={"id": SimpleNamespace(lora_name="hone-1")},
        loras={"id": SimpleNamespace(scaling=1.0)},
        configs={"id": SimpleNamespace(r=RANK)},
        memory_pool=SimpleNamespace(uid_to_buffer_id={None: 0, "id": SLOT}),
    )
    return SimpleNamespace(model=model, lora_manager=manager)


def compared_adapters(plugin: Any, tensors: Mapping[str, Tensor], *runners: Any) -> Comparison:
    request = json.dumps({"names": list(tensors), "adapter": "hone-1"})
    answers = [plugin.worker_answer(runner, request) for runner in runners]
    assert [answer["error"] for answer in answers] == [""] * len(runners)
    return compare(proof(tensors), [answer["tensors"] for answer in answers])


def test_adapters_are_proven_and_old_ones_found(plugin: Any):
    new, old = adapters(), adapters(seed=1)
    assert compared_adapters(plugin, new, adapted_runner(new)).proven
    assert set(compared_adapters(plugin, new, adapted_runner(old)).differing) == set(new)
    workers = [adapted_runner(new, rank, 2) for rank in range(2)]
    assert compared_adapters(plugin, new, *workers).proven
    assert compared(plugin, published(), *(each.model for each in workers)).proven  # the layers beneath


def test_unused_or_scaled_adapters_are_unproven(plugin: Any):
    tensors = adapters()
    unused, scaled = adapted_runner(tensors), adapted_runner(tensors)
    del unused.lora_manager.memory_pool.uid_to_buffer_id["id"]
    scaled.lora_manager.loras["id"].scaling = 2.0
    for runner in (unused, scaled):
        assert compared_adapters(plugin, tensors, runner).unproven == list(tensors)


@dataclass
class CheckWeightsReqOutput:
    success: bool
    message: str
    payload: Any


def test_answer_has_an_entry_for_each_worker(plugin: Any, monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("sglang.srt.managers.io_struct")
    monkeypatch.setattr(module, "CheckWeightsReqOutput", CheckWeightsReqOutput, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def gather(answers: list[Any], mine: Any, group: str) -> None:
        answers[:] = [mine, f"of {group}"]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    manager = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=None), tp_cpu_group="the others")

    def answer(action: str) -> Any:
        return plugin.check_weights(lambda *_: "SGLang's own", manager, SimpleNamespace(action=action))

    assert answer("checksum") == "SGLang's own"
    workers = answer(DIGESTS + '{"names": ["w"], "adapter": ""}').payload["workers"]
    assert workers[0] == {
        "tensors": {},
        "error": "AttributeError: 'NoneType' object has no attribute 'model'",
    }
    assert workers[1] == "of the others"


def test_sglang_finds_the_plugin_on_its_python_path(plugin: Any):
    (found,) = metadata.distributions(path=[str(INSIDE)])
    (entry,) = found.entry_points
    assert (entry.group, entry.name) == ("sglang.srt.plugins", SGLANG_PLUGIN)
    assert entry.load() is plugin.register
    assert plugin.ACTION == DIGESTS


def test_wheel_includes_the_plugins_entry_point():
    """A wheel of Hone has every file below `hone` that git does not ignore."""
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", INSIDE],
        cwd=INSIDE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {"hone_sglang-1.dist-info/METADATA", "hone_sglang-1.dist-info/entry_points.txt"} < set(files)
