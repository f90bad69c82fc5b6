"""The recipe that `hone start` writes: everything resolved, for the smallest machine that the model fits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.config import ConfigError, Layer, RunSettings, assign, resolve
from hone.config.device_plan import plan_devices
from hone.config.models import policy_shape
from hone.config.placement import devices_of_run
from hone.config.shapes import known_shape
from hone.policy.hub import cached_model, config_folder
from hone.policy.model import DEFAULT_CONTEXT, longest_context
from hone.policy.settings import ModelSettings
from hone.utils.devices import Devices, equal_devices, find_devices

CPU_PARAMETERS = 50_000_000  # of the largest model that a machine without a GPU trains in reasonable time
_CPU_CONTEXT = 8192  # tokens
_SANDBOXES = ("sandbox.memory_mib=2048", "sandbox.pids=512", "sandbox.disk_mib=2048")
# A model of a million parameters that the run makes itself: it shows the whole way on two cores.
_TINY = (
    "makes_model=true",
    "groups_per_step=2",
    "tiny_model={hidden_size=128, layers=2, heads=4, kv_heads=4, head_dim=32, intermediate_size=384, "
    "max_positions=4096}",
    'agent={prompts="tiny", turn_limit=2, command_timeout_s=20}',
    'demonstrations.agent={kind="oracle", prompts="tiny"}',
    "engine={context_tokens=4096, max_batch=8, threads=1}",
    "sampling.max_tokens=256",
    "rollout={group_size=4, concurrent_episodes=4}",
    "sft={epochs=3, batch_size=4, micro_batch_tokens=4096}",
    "train.steps=2",
    "train.batch.micro_batch_tokens=4096",
)
# A model of its own folder, small enough for the CPU.
_SMALL = (
    "groups_per_step=2",
    "agent={turn_limit=10, command_timeout_s=60}",
    "engine={max_batch=8, threads=1}",
    "sampling.max_tokens=512",
    "rollout={group_size=4, concurrent_episodes=4}",
    "train.steps=10",
)
# GRPO of a bash agent on issues, as recipes/shared/swe.toml.
_LARGE = (
    "groups_per_step=8",
    "agent={turn_limit=20, command_timeout_s=180}",
    "engine.kind=vllm",
    "sampling={temperature=1.0, max_tokens=4096}",
    "rollout={group_size=8, concurrent_episodes=16, time_limit_s=1800}",
    "train.steps=100",
    "train.loss={clip_low=0.2, clip_high=0.28}",
    "train.optimizer.lr=1e-6",
    "train.memory.activation_checkpointing=true",
    "train.batch={micro_batch_tokens=32768, logit_tokens=8192}",
    "train.checkpoint.every=5",
)
_ONE_GPU = ("placement.colocate=true", "engine.gpu_memory_fraction=0.5")
_FOUR_GPUS = (
    *("placement.colocate=true", "engine.gpu_memory_fraction=0.5"),
    *("train.learner=ranks", "train.ranks=4", "engine.servers=2", "engine.tensor_parallel=2"),
)
_EIGHT_GPUS = (
    *("train.learner=ranks", "train.ranks=4", "train.parallel.sequence=2"),
    *("engine.servers=2", "engine.tensor_parallel=2"),
)
_EIGHT_SHARED = (
    *("placement.colocate=true", "engine.gpu_memory_fraction=0.5"),
    *("train.learner=ranks", "train.ranks=8", "train.parallel.sequence=2"),
    *("engine.servers=2", "engine.tensor_parallel=4"),
)
_MACHINES = (
    (_ONE_GPU, 1, 24.0),
    (_ONE_GPU, 1, 80.0),
    (_FOUR_GPUS, 4, 80.0),
    (_EIGHT_GPUS, 8, 80.0),
    (_EIGHT_SHARED, 8, 80.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a recipe takes."""

    machine: str  # the smallest one that was found; "" if none fits
    here: str  # why this machine cannot train it; "" if it can


def make_recipe(
    out: Path, model: str | None, tasks: int, sets: Sequence[str | Layer]
) -> tuple[RunSettings, Hardware]:
    """Return the settings of a training on `out/train.jsonl`, and what hardware they take.

    Args:
        model: folder or name on the hub; None: a tiny model that the run makes.
        tasks: number of training tasks.
        sets: settings on top.
    Raises:
        ConfigError: the model cannot be read, or a setting is wrong.
    """
    files: list[str | Layer] = [
        assign("hone start", "run_dir", str(out / "run")),
        assign("hone start", "tasks.source", str(out / "train.jsonl")),
        assign("hone start", "tasks.evaluation", str(out / "test.jsonl")),
        assign("hone start", "grading.concurrency", os.cpu_count() or 1),
        *_SANDBOXES,
    ]
    if model is None:
        shown = assign("hone start", "demonstrations.rollouts", max(1, tasks // 2))
        settings = resolve(None, [*files, *_TINY, shown, *sets])
        return settings, Hardware(machine=_this_machine(settings), here=_problem_here(settings))
    files.append(assign("--model", "model.path", model))
    small = resolve(None, [*files, *_SMALL, *sets])
    shape, _ = policy_shape(small, "train")
    longest = _longest_context(model)
    if shape is not None and shape.parameters <= CPU_PARAMETERS:
        context = assign("--model", "engine.context_tokens", min(longest, _CPU_CONTEXT))
        small = resolve(None, [*files, *_SMALL, context, *sets])
        return small, Hardware(machine=_this_machine(small), here=_problem_here(small))
    files.append(assign("--model", "engine.context_tokens", longest))
    return _for_gpus(files, sets)


def _longest_context(model: str) -> int:
    """Return the model's context length, at most DEFAULT_CONTEXT."""
    settings = ModelSettings(path=Path(model))
    if known_shape(model) is not None and cached_model(settings) is None:
        return DEFAULT_CONTEXT
    return min(longest_context(config_folder(settings)) or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _for_gpus(files: Sequence[str | Layer], sets: Sequence[str | Layer]) -> tuple[RunSettings, Hardware]:
    """Return the settings for this machine if its GPUs suffice, else for the smallest that does."""
    own = find_devices()
    base: list[str | Layer] = [*files, *_LARGE, assign("--model", "model.dtype", "bfloat16")]
    tried = [(resolve(None, [*base, *more, *sets]), gpus, gib) for more, gpus, gib in _MACHINES]
    for settings, gpus, _ in tried:
        if len(own.gpus) >= gpus and _fits(settings, devices_of_run(settings, own)):
            return settings, Hardware(machine=own.describe(), here="")
    here = f"its model does not fit {own.describe()}"
    for settings, gpus, gib in tried:
        machine = equal_devices(gpus, gib)
        if _fits(settings, machine):
            return settings, Hardware(machine=machine.describe(), here=here)
    return tried[-1][0], Hardware(machine="", here=here)


def _this_machine(settings: RunSettings) -> str:
    plan = plan_devices(settings, "train", devices_of_run(settings, find_devices()))
    return plan.summary if plan.fits else ""


def _problem_here(settings: RunSettings) -> str:
    return plan_devices(settings, "train", devices_of_run(settings, find_devices())).problem


def _fits(settings: RunSettings, devices: Devices) -> bool:
    try:
        return plan_devices(settings, "train", devices).fits
    except ConfigError:
        return False  # these settings and this machine exclude each other
