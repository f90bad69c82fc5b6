"""Load a model folder into the ranks: each reads and keeps its own shard only.

transformers creates the model without memory, `_distribute` splits its matrices (tensor parallelism, by the
model's own plan) and shards it (FSDP2), and transformers then reads each rank's part of every tensor.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from hone.policy.errors import PolicyError
from hone.policy.model import read_config
from hone.policy.rendering import first_line
from hone.train.ranks.world import World

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PARTIAL = "replicated_with_grad_allreduce"  # adds up the whole gradient after each backward pass: see below


def load_sharded(
    path: Path,
    dtype: Literal["float32", "bfloat16"],
    world: World,
    make_root: Callable[[PreTrainedModel], nn.Module],
    *,
    offload: bool = False,
    frozen: bool = False,
) -> tuple[nn.Module, list[str]]:
    """Return the sharded root module that `make_root` makes of the model, and the names described below.

    Weights are float32 shards; with `dtype` bfloat16 they are the master weights, and each pass gathers them
    as bfloat16. `offload` keeps shards, gradients and optimiser state in host memory. `frozen` weights, which
    nothing updates, are shards in `dtype` itself.

    The names are those of parameters that every rank of a tensor group holds whole but uses for its own heads
    (the norms of queries and keys): their gradients are parts, to be added up over the group once per
    optimiser step. transformers adds them up after each backward pass, in place, which counts earlier passes
    again; so its rule is removed here. Raises PolicyError.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would fill the rank's log
    read_config(path)
    precision = MixedPrecisionPolicy()
    if dtype == "bfloat16" and not frozen:
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    made: list[nn.Module] = []
    partial: list[str] = []
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    base: Any = cast("Any", AutoModelForCausalLM)._model_mapping[type(config)]

    def distribute(
        cls: type, model: PreTrainedModel, settings: DistributedConfig, meshes: Any
    ) -> PreTrainedModel:
        if world.mesh["tensor"].size() > 1:
            partial.extend(_split_matrices(model, settings, world))
        model.tie_weights()  # after the split, whose rules name the output head too
        root = make_root(model)
        root.requires_grad_(not frozen)
        _shard(root, model, world, precision=precision, offload=offload)
        made.append(root)
        model._is_distributed_loading_by_transformers = True
        return model

    hooked = _class_with_hooks(base, world, distribute)
    try:
        hooked.from_pretrained(
            path,
            config=config,
            dtype=getattr(torch, dtype) if frozen else torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            distributed_config=DistributedConfig(tp_size=world.mesh["tensor"].size()),
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise PolicyError(f"the model in {path} cannot be loaded: {first_line(error)}") from error
    return made[0], partial


def _class_with_hooks(base: Any, world: World, distribute: Callable[..., PreTrainedModel]) -> Any:
    """Return the model class `base` with `distribute` where transformers would distribute the model."""

    def prepare(cls: type, distributed_config: Any, device_map: Any = None) -> tuple[Any, Any, _Meshes]:
        return distributed_config, world.device, _Meshes(world)

    return type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "prepare_distribute_model": classmethod(prepare),
            "maybe_distribute_model": classmethod(distribute),
        },
    )


class _Meshes:
    """What transformers asks for while it loads."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_mesh(self, dims: str | tuple[str, ...]) -> Any:
        return self._world.mesh


def _split_matrices(model: PreTrainedModel, settings: Any, world: World) -> list[str]:
    """Apply the model's plan for tensor parallelism; return the names of partial parameters."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    plan, _, _ = model._resolve_parallel_plans(settings)
    partial = {name for name, style in plan.items() if style == _PARTIAL}
    kept = {name: style for name, style in plan.items() if style != _PARTIAL}
    apply_tensor_parallelism(model, world.mesh["tensor"], kept)
    return [
        name for name, _ in model.named_parameters() if name in partial or name.rpartition(".")[0] in partial
    ]


def _shard(
    root: nn.Module, model: PreTrainedModel, world: World, *, precision: MixedPrecisionPolicy, offload: bool
) -> None:
    """Apply FSDP2 to each layer and to the root; gradients are sums over the ranks, not means."""
    mesh = world.shards
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    layers = set(model._no_split_modules or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=precision, offload_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
