"""Low-rank adapters (LoRA, arXiv:2106.09685) inside the model that is trained and sampled from.

    W x  becomes  W x + alpha / rank * B (A x)      W [out, in] fixed, A [rank, in], B [out, rank]

transformers stores the experts of a mixture as one parameter, W [experts, out, in]; each expert then has its
own rows of A and columns of B. Each pass makes W + alpha / rank * B A of all experts, in the precision of W.

peft puts the adapters into the transformers model in place. It stays the same object, so an engine that
shares it samples with the adapters; with the adapters disabled it is the base model, the reference of the KL
term.

Invariant: A and B are float32 whatever the precision of the model; W never changes and has no gradient.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hone.train.errors import CheckpointError, TrainError
from hone.train.settings import ALL_LINEAR, EXPERTS, LoraSettings
from hone.train.sharding import gather

if TYPE_CHECKING:  # their imports take seconds
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel

ADAPTER = "default"  # peft's name of the adapter inside the model
_DIGEST_VALUES = 1024


def add_adapters(model: PreTrainedModel, settings: LoraSettings, *, seed: int = 0) -> None:
    """Put trainable adapters into `model`, in place, and freeze all other parameters.

    B starts as 0, so the model computes what it did before. A is uniform in +-1 / sqrt(in), as in peft, and
    depends only on `seed` and the name of its module: it is the same on every rank. Of a model that FSDP has
    sharded, each rank holds whole adapters, which FSDP does not know of.
    Raises TrainError for a target that the model does not have.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear, experts = _resolve(model, settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=cast("int", settings.alpha),  # a factor; peft's annotation is narrower than its arithmetic
        target_modules=linear,
        target_parameters=experts or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with _whole_shapes(model):
        inject_adapter_in_model(config, model, ADAPTER)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    for name, layer in adapted_layers(model):
        for part in (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]):
            part.to(torch.float32)
        _initialise(layer, f"{seed} {name}")


def has_adapters(model: nn.Module) -> bool:
    """Return whether `add_adapters` was called on the model."""
    return hasattr(model, "peft_config")


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Yield the name and the module of each adapted layer, in the order of the model's modules.

    Adapted experts are two of them, one inside the other.
    """
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


@contextmanager
def adapters_disabled(model: nn.Module) -> Generator[None]:
    """Make `model` compute what the base model computes, without a copy of any weight.

    Nothing else may run the model meanwhile, such as an engine that shares it.
    """
    layers = [cast("Any", layer) for _, layer in adapted_layers(model)]
    # peft's own switch also changes requires_grad, which FSDP has read when it sharded the parameters
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def adapter_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield peft's name and the float32 tensor of each A and B, one whole tensor at a time.

    With sharded parameters all ranks iterate together, because every tensor is gathered.
    """
    for name, layer in adapted_layers(model):
        yield f"base_model.model.{name}.lora_A.weight", gather(_weight(layer.lora_A[ADAPTER]))
        yield f"base_model.model.{name}.lora_B.weight", gather(_weight(layer.lora_B[ADAPTER]))


def save_adapters(model: PreTrainedModel, folder: Path, *, base: Path | str) -> None:
    """Write the adapters alone, for `PeftModel.from_pretrained` and engines that hold the model `base`.

    Files: adapter_config.json, adapter_model.safetensors (float32).
    """
    config = adapter_config(model)
    _write_adapters(config, folder, base, dict(adapter_tensors(model)), alpha=config.lora_alpha)


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Give `model` the adapters that `save_adapters` has written; add adapters first if it has none."""
    from peft import LoraConfig
    from safetensors.torch import load_file

    if not has_adapters(model):
        config = cast("Any", LoraConfig.from_pretrained(str(folder)))
        experts = [EXPERTS] if config.target_parameters else []
        targets = (*sorted(config.target_modules), *experts)
        add_adapters(model, LoraSettings(rank=config.r, alpha=config.lora_alpha, targets=targets))
    stored = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, tensor in adapter_tensors(model):
            tensor.copy_(stored[name])


def publish_adapters(model: PreTrainedModel, folder: Path, *, base: Path | str) -> None:
    """Write the adapters as engine servers hold them: in the model's precision, alpha / rank folded into B.

    A server then loads the files bit for bit, which digests of its weights can prove.
    """
    _publish(adapter_config(model), adapter_tensors(model), folder, base, model.dtype)


def publish_saved_adapters(saved: Path, folder: Path, *, base: Path | str, dtype: torch.dtype) -> None:
    """Write the files of `publish_adapters` into `folder`, from those of `save_adapters` in `saved`.

    Loads no model; `dtype` is the precision that it has.
    """
    from peft import LoraConfig
    from safetensors.torch import load_file

    config = cast("LoraConfig", LoraConfig.from_pretrained(str(saved)))
    stored = load_file(saved / "adapter_model.safetensors")
    _publish(config, stored.items(), folder, base, dtype)


def _publish(
    config: LoraConfig,
    tensors: Iterable[tuple[str, Tensor]],
    folder: Path,
    base: Path | str,
    dtype: torch.dtype,
) -> None:
    scaling = {"lora_A": 1.0, "lora_B": config.lora_alpha / config.r}
    rounded = {n: (tensor.detach() * scaling[n.split(".")[-2]]).to(dtype) for n, tensor in tensors}
    _write_adapters(config, folder, base, rounded, alpha=config.r)


def _write_adapters(
    config: LoraConfig, folder: Path, base: Path | str, tensors: Mapping[str, Tensor], *, alpha: float
) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(copies, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.copy(config)
    config.base_model_name_or_path = str(base)
    config.inference_mode = True
    config.lora_alpha = cast("int", alpha)
    config.save_pretrained(str(folder))


def save_merged(model: PreTrainedModel, folder: Path) -> None:
    """Write the merged weights and the configuration, for transformers; the model itself does not change.

    Takes host memory for the adapted matrices until the files are complete.
    """
    adapted = _adapted_weights(model)
    state = {name: t.cpu() if name in adapted else t for name, t in merged_tensors(model)}
    model.save_pretrained(str(folder), state_dict=state)


def base_digest(model: nn.Module) -> Tensor:
    """Return an int64 scalar that tells base models apart: of names, shapes and the first values of each.

    With sharded parameters all ranks call together.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):  # a pass may reorder adapted experts
        if not parameter.requires_grad:
            first = gather(parameter.detach()).flatten()[:_DIGEST_VALUES].float().cpu()
            digest.update(f"{name} {tuple(parameter.shape)} ".encode() + first.numpy().tobytes())
    return torch.tensor(int.from_bytes(digest.digest()[:8], "big", signed=True))


def require_same_base(
    folder: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], model: Path | str
) -> None:
    """Raise CheckpointError unless the digests that `folder` holds are those of the present base `model`."""
    if found != expected:
        raise CheckpointError(
            f"the adapters in {folder} belong to another base model than {model}: "
            "restore the model that the run began with, or choose another run directory"
        )


def adapter_config(model: nn.Module) -> LoraConfig:
    """Return peft's configuration of the model's adapters."""
    return cast("Any", model).peft_config[ADAPTER]


@torch.no_grad()
def merged_tensors(model: nn.Module, *, skip: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of each entry of the base model's state, with W + alpha / rank * B A for W.

    The sum is made in float32 and rounded to the precision of W; the model itself does not change. One merged
    matrix exists at a time. With sharded parameters all ranks iterate together. `skip`: names to leave out.
    """
    layers = _adapted_weights(model)
    for name, tensor in cast("dict[str, Tensor]", model.state_dict()).items():
        if ".lora_" in name or name in skip:
            continue
        plain = name.replace(".base_layer", "")
        whole = gather(tensor)
        yield plain, _merged(whole, layers[plain]) if plain in layers else whole


def _adapted_weights(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the adapted layer of each adapted weight, by the weight's name in the base model."""
    return {
        f"{name.replace('.base_layer', '')}.{getattr(layer, 'parameter_name', 'weight')}": layer
        for name, layer in adapted_layers(model)
    }


def _merged(weight: Tensor, layer: LoraLayer) -> Tensor:
    """Return W + alpha / rank * B A in the precision of W, [out, in] or [experts, out, in]."""
    a, b = gather(_weight(layer.lora_A[ADAPTER])), gather(_weight(layer.lora_B[ADAPTER]))
    scaling = float(layer.scaling[ADAPTER])
    if weight.ndim == 2:
        return torch.addmm(weight.float(), b, a, alpha=scaling).to(weight.dtype)
    experts, out, into = weight.shape
    a, b = (
        a.view(experts, -1, into),
        b.view(out, -1, experts).permute(2, 0, 1),
    )  # peft's order of rows and columns
    return torch.baddbmm(weight.float(), b, a, alpha=scaling).to(weight.dtype)


def _resolve(model: PreTrainedModel, targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names to adapt, sorted: last parts of those of linear layers, and `experts.PARAMETER`."""
    head = model.get_output_embeddings()
    paths = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    names = sorted({path.rpartition(".")[2] for path in paths})
    experts = _expert_parameters(model)
    known = {ALL_LINEAR, *names, *([EXPERTS] if experts else [])}
    unknown = sorted(set(targets) - known)
    if unknown:
        raise TrainError(
            f"`train.lora.targets` has {', '.join(map(repr, unknown))}, but the linear layers of this model "
            f"are {', '.join(names)}{f' and {EXPERTS}' if experts else ''}. Choose among these, or set "
            f"`{ALL_LINEAR}`."
        )
    linear = names if ALL_LINEAR in targets else sorted(set(targets) - {EXPERTS})
    return linear, experts if EXPERTS in targets else []


def _expert_parameters(model: nn.Module) -> list[str]:
    """Return the last two parts of the names of parameters [experts, out, in], such as experts.down_proj."""
    return sorted(
        {
            f"experts.{name}"
            for path, module in model.named_modules()
            if path.endswith(".experts") and not getattr(module, "is_transposed", False)
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.ndim == 3
        }
    )


@contextmanager
def _whole_shapes(model: nn.Module) -> Generator[None]:
    """Show sharded weights of linear layers as plain tensors of the whole shape, which take no memory.

    peft makes the adapters of a layer as large as the local part of its weight.
    """
    sharded = [m for m in model.modules() if isinstance(m, nn.Linear) and isinstance(m.weight, DTensor)]
    weights = [module.weight for module in sharded]
    for module, weight in zip(sharded, weights, strict=True):
        one = torch.empty(1, dtype=weight.dtype, device=weight.device)
        module.weight = nn.Parameter(one.expand(weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for module, weight in zip(sharded, weights, strict=True):
            module.weight = weight


def _initialise(layer: LoraLayer, key: str) -> None:
    a, b = _weight(layer.lora_A[ADAPTER]), _weight(layer.lora_B[ADAPTER])
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    start = torch.empty(a.shape).uniform_(
        -(a.shape[1] ** -0.5), a.shape[1] ** -0.5, generator=torch.Generator().manual_seed(seed)
    )
    with torch.no_grad():
        a.copy_(start)
        b.zero_()


def _weight(module: nn.Module) -> Tensor:
    return cast("Tensor", module.weight)
