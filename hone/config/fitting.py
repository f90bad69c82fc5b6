"""Settings that make a run fit the devices of a machine, found by planning each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hone.config.device_plan import plan_devices
from hone.config.fields import ConfigError
from hone.config.run import SAMPLING, Command, RunSettings
from hone.policy.settings import LocalEngineSettings, ServerEngineSettings
from hone.settings import Settings
from hone.utils.devices import Devices, equal_devices

_AMPLE_GPUS, _AMPLE_GIB = 1024, 1e6  # of a machine that lacks nothing
_MOST_CHANGES = 5  # made together
_MOST_PLANS = 4000  # which take about two seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New values of settings, by dotted name."""

    values: dict[str, Any]
    cost: int  # how much it changes the run or slows it down; the cheapest that fits is suggested

    def describe(self) -> str:
        return ", ".join(f"{path} = {_toml(value)}" for path, value in self.values.items())


def refusal(settings: RunSettings, command: Command, devices: Devices) -> str:
    """Return why a run cannot start on `devices` and which settings would fit; "" for a run that fits."""
    plan = plan_devices(settings, command, devices)
    if plan.fits:
        return ""
    ample = equal_devices(_AMPLE_GPUS, _AMPLE_GIB, nodes=settings.placement.nodes)
    if plan.placement_error and plan_devices(settings, command, ample).placement_error:
        return plan.placement_error  # which no machine allows
    changes = suggest(settings, command, devices)
    if not changes and plan.placement_error:
        return plan.placement_error  # which says what to do
    if not changes:
        return f"{plan.problem}. No setting makes it fit: use more or larger GPUs, or a smaller model"
    return f"{plan.problem}. It fits with {'; '.join(change.describe() for change in changes)}"


def suggest(settings: RunSettings, command: Command, devices: Devices) -> tuple[Change, ...]:
    """Return the changes of least cost with which the run fits; () if none does."""
    moves = list(_changes(settings, command, devices))
    chosen = [set_ for size in range(1, _MOST_CHANGES + 1) for set_ in combinations(moves, size)]
    cheapest = sorted(chosen, key=lambda each: sum(change.cost for change in each))
    for changes in cheapest[:_MOST_PLANS]:
        paths = [path for change in changes for path in change.values]
        if len(set(paths)) == len(paths) and _fits(settings, command, devices, changes):
            return changes
    return ()


def _fits(settings: RunSettings, command: Command, devices: Devices, changes: Sequence[Change]) -> bool:
    try:
        changed = with_values(settings, {p: v for change in changes for p, v in change.values.items()})
        return plan_devices(changed, command, devices).fits
    except (ConfigError, ValueError):  # pydantic's ValidationError is a ValueError
        return False


def with_values(settings: RunSettings, values: dict[str, Any]) -> RunSettings:
    """Return the settings with other values, by dotted name. Raises ValueError for an invalid combination."""
    tree = _set_values(settings)
    for path, value in values.items():
        *groups, name = path.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return RunSettings.model_validate(tree)


def _set_values(settings: Settings) -> dict[str, Any]:
    """Return the values that were set, with the kind of each group that has kinds."""
    tree: dict[str, Any] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            inner = _set_values(value)
            if "kind" in type(value).model_fields:
                inner["kind"] = getattr(value, "kind")  # noqa: B009
            if inner or name in settings.model_fields_set:
                tree[name] = inner
        elif name in settings.model_fields_set:
            tree[name] = value
    return tree


def _changes(settings: RunSettings, command: Command, devices: Devices) -> Iterator[Change]:
    """Yield the changes to try, each of which saves memory."""
    if command != "eval":
        yield from _trainer_changes(settings, command, devices)
    if command in SAMPLING:
        yield from _engine_changes(settings, devices)


def _trainer_changes(settings: RunSettings, command: Command, devices: Devices) -> Iterator[Change]:
    train, memory = settings.train, settings.train.memory
    group = "sft" if command == "sft" else "train.batch"
    passes = settings.sft if command == "sft" else train.batch
    if not memory.activation_checkpointing:
        yield Change(values={"train.memory.activation_checkpointing": True}, cost=2)
    if passes.logit_tokens > 1024:
        yield Change(values={f"{group}.logit_tokens": 1024}, cost=1)
    longest = settings.engine.context_tokens
    if passes.micro_batch_tokens > longest:
        yield Change(values={f"{group}.micro_batch_tokens": longest}, cost=1)
    if passes.workers > 1:
        yield Change(values={f"{group}.workers": 1}, cost=2)
    if train.lora is None:
        yield Change(values={"train.lora": {"rank": 16}}, cost=20)
    if not devices.gpus:
        return
    if not memory.offload_optimizer:
        yield Change(values={"train.memory.offload_optimizer": True}, cost=4)
    if not memory.offload_activations:
        yield Change(values={"train.memory.offload_activations": True}, cost=5)
    yield from _rank_changes(settings, devices)


def _rank_changes(settings: RunSettings, devices: Devices) -> Iterator[Change]:
    """Yield other numbers of ranks on one machine, and other ways to divide them."""
    train, count = settings.train, devices.gpus_per_node
    placement = settings.placement
    if {placement.engine, placement.judge, placement.teacher} != {"auto"} or placement.nodes > 1:
        servers = dict.fromkeys(("placement.engine", "placement.judge", "placement.teacher"), "auto")
        nearby = {"placement.nodes": 1, **servers}
        yield Change(values=nearby, cost=8)
    if placement.trainer != "auto" or train.parallel.fsdp is not None:
        return
    parallel = train.parallel
    divided = {name: getattr(parallel, name) for name in ("replicate", "sequence", "tensor")}
    whole = {f"train.parallel.{name}": 1 for name, size in divided.items() if size > 1}
    if train.learner == "ranks":
        yield Change(values={"train.learner": "in_process", "train.ranks": 1, **whole}, cost=5)
    for ranks in (count, count // 2):
        if ranks < 2:
            continue
        values = {"train.learner": "ranks", "train.ranks": ranks, **whole}
        if not (train.learner == "ranks" and ranks == train.ranks):
            yield Change(values=values, cost=6)
        for sequence in (2, 4, 8):
            if ranks % sequence == 0 and sequence > parallel.sequence:
                yield Change(values={**values, "train.parallel.sequence": sequence}, cost=6 + sequence)


def _engine_changes(settings: RunSettings, devices: Devices) -> Iterator[Change]:
    engine = settings.engine
    if isinstance(engine, LocalEngineSettings):
        if engine.cached_sessions > 0:
            yield Change(values={"engine.cached_sessions": 0}, cost=3)
        if engine.max_batch > 4:
            yield Change(values={"engine.max_batch": 4}, cost=3)
    if not isinstance(engine, ServerEngineSettings) or not engine.managed or not devices.gpus:
        return
    if not settings.placement.colocate and settings.placement.engine == "auto":
        yield Change(values={"placement.colocate": True}, cost=5)
    for fraction in (0.7, 0.5, 0.3):
        if fraction < engine.gpu_memory_fraction:
            yield Change(values={"engine.gpu_memory_fraction": fraction}, cost=round(10 * (1 - fraction)))
    if settings.placement.engine != "auto":
        return
    sizes = [size for size in (1, 2, 4, 8) if size <= devices.gpus_per_node]
    for size in sizes:
        if size != engine.tensor_parallel:
            yield Change(values={"engine.tensor_parallel": size}, cost=3)
        if engine.servers > 1:
            yield Change(values={"engine.servers": 1, "engine.tensor_parallel": size}, cost=4)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
