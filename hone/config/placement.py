"""Resolve [placement] on a machine: the devices of the trainer, the engine servers, judge and teacher.

GPUs are numbered from 0 as CUDA_VISIBLE_DEVICES shows them to the run; with several machines, those of the
second one follow those of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hone.config.fields import ConfigError
from hone.config.run import SAMPLING, Command, RunSettings
from hone.policy.settings import AnyEngineSettings, ServerEngineSettings
from hone.utils.devices import Devices, repeated

Servers = tuple[tuple[int, ...], ...]  # the GPUs of each
ENGINES = {"engine": "engine", "judge": "judge.engine", "teacher": "train.distill.engine"}  # name -> group


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices of a run on a machine."""

    trainer: Literal["cpu", "mps", "none"] | tuple[int, ...]  # one GPU per rank
    engine: tuple[tuple[int, ...], ...] = ()  # GPUs of each server; (): none, on the CPU or elsewhere
    judge: tuple[tuple[int, ...], ...] = ()
    teacher: tuple[tuple[int, ...], ...] = ()
    sleeps: bool = False  # whether the engine gives its memory to the trainer while it trains

    @property
    def trainer_gpus(self) -> tuple[int, ...]:
        return self.trainer if isinstance(self.trainer, tuple) else ()


def devices_of_run(settings: RunSettings, machine: Devices) -> Devices:
    """Return the devices of the run's `placement.nodes` machines, all like this one."""
    nodes = settings.placement.nodes
    return repeated(machine, nodes) if machine.gpus and machine.nodes == 1 < nodes else machine


def resolve_placement(settings: RunSettings, devices: Devices, command: Command) -> Placement:
    """Return the devices of the run. Raises ConfigError, with the numbers, for what the machine lacks."""
    wanted = settings.placement
    if devices.gpus and wanted.nodes > devices.nodes:
        raise ConfigError(
            f"placement.nodes is {wanted.nodes}, but the plan is for {devices.describe()}: use as many"
        )
    elsewhere = settings.train.learner in ("tinker", "prime_rl") and command in ("train", "replay")
    trainer = "none" if command == "eval" or elsewhere else _trainer(settings, devices, command)
    taken = trainer if isinstance(trainer, tuple) else ()
    engine: Servers = ()
    if command in SAMPLING:
        first = 0 if wanted.colocate else len(taken)
        engine = _servers("engine", wanted.engine, settings.engine, devices, first)
    others: dict[str, Servers] = {}
    for name, other in settings.beside_policy(command).items():
        used = [gpu for servers in (engine, *others.values()) for server in servers for gpu in server]
        first = max(len(taken), max(used, default=-1) + 1)
        others[name] = _servers(name, getattr(wanted, name), other.engine, devices, first)
    shared = set(taken) & {gpu for server in engine for gpu in server}
    sleeps = wanted.colocate and bool(shared)
    if wanted.colocate and command == "train" and not sleeps and devices.gpus:
        raise ConfigError(
            "placement.colocate has no effect, because the engine's servers share no GPU with the trainer: "
            "remove it, or give them GPUs of placement.trainer"
        )
    if sleeps and settings.engine.addresses:
        raise ConfigError(
            "placement.colocate needs servers that the run starts, because others may serve other runs: "
            "remove engine.urls, or placement.colocate"
        )
    if shared and getattr(settings.engine, "weight_sync", "disk") == "nccl":
        raise ConfigError(
            'engine.weight_sync is "nccl", but the engine\'s servers share GPUs with the trainer, which NCCL '
            'refuses: set engine.weight_sync to "disk", or give them GPUs of their own in placement.engine'
        )
    return Placement(trainer=trainer, engine=engine, sleeps=sleeps, **others)


def _trainer(
    settings: RunSettings, devices: Devices, command: Command
) -> Literal["cpu", "mps"] | tuple[int, ...]:
    wanted, train = settings.placement.trainer, settings.train
    count = train.ranks if train.learner == "ranks" else 1
    workers = max(settings.sft.workers, train.batch.workers)
    if command != "quickstart":
        workers = settings.sft.workers if command == "sft" else train.batch.workers
    if wanted == "auto":
        if not devices.gpus or workers > 1:
            return "cpu"
        if count > len(devices.gpus):
            raise ConfigError(
                f"train.ranks is {count}, but the plan is for {devices.describe()}: lower train.ranks, set "
                'placement.nodes to the number of machines, or set placement.trainer = "cpu"'
            )
        if count > settings.placement.nodes * devices.gpus_per_node:
            raise ConfigError(
                f"train.ranks is {count}, but placement.nodes is {settings.placement.nodes}, with "
                f"{_gpus(devices.gpus_per_node)} each: set placement.nodes to the number of machines"
            )
        return tuple(range(count))
    if wanted == "mps" and not devices.mps:
        raise ConfigError('placement.trainer is "mps", but this machine has no Apple GPU: set it to "auto"')
    if isinstance(wanted, str):
        return wanted
    _require_gpus("placement.trainer", [wanted], devices)
    if len(wanted) != count:
        what = f"train.ranks is {count}" if train.learner == "ranks" else 'train.learner is "in_process"'
        raise ConfigError(f"placement.trainer names {_gpus(len(wanted))}, but {what}: name {_gpus(count)}")
    return wanted


def _servers(
    name: str,
    wanted: Literal["auto"] | tuple[tuple[int, ...], ...],
    engine: AnyEngineSettings,
    devices: Devices,
    first: int,
) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of each server of the engine, the judge or the teacher.

    Args:
        first: GPU from which `auto` counts.
    """
    setting = f"placement.{name}"
    if wanted == ():
        return ()
    if not isinstance(engine, ServerEngineSettings):
        if wanted != "auto":
            raise ConfigError(
                f'{setting} has no effect with {name} kind "{engine.kind}", which starts no server: remove it'
            )
        return ()
    if wanted == "auto":
        if not devices.gpus or engine.urls:
            return ()
        size, count = engine.tensor_parallel, engine.servers
        if first + size * count > devices.gpus_per_node:
            raise ConfigError(
                f"{setting}: {_count(count, 'server')} of {_gpus(size)}, beside {_gpus(first)} of others, "
                f"do not fit {devices.describe()}: use fewer, set placement.colocate = true, or list "
                f"servers on other machines in {ENGINES[name]}.urls"
            )
        starts = range(first, first + size * count, size)
        return tuple(tuple(range(at, at + size)) for at in starts)
    _require_gpus(setting, wanted, devices)
    _require_servers(setting, wanted, engine, devices)
    return wanted


def _require_servers(
    setting: str, wanted: tuple[tuple[int, ...], ...], engine: ServerEngineSettings, devices: Devices
) -> None:
    """Raise ConfigError unless the lists agree with the servers' settings."""
    count = len(engine.urls) or engine.servers
    if len(wanted) != count:
        raise ConfigError(f"{setting} lists {len(wanted)} servers, but the engine has {count}: list each one")
    for gpus in wanted:
        if engine.managed and len(gpus) != engine.tensor_parallel:
            raise ConfigError(
                f"{setting} gives a server {_gpus(len(gpus))}, but tensor_parallel is "
                f"{engine.tensor_parallel}: make them equal"
            )
        if engine.managed and max(gpus) >= devices.gpus_per_node:
            raise ConfigError(
                f"{setting} names GPU {max(gpus)} of another machine, where the run starts no server: "
                "start it there with `hone engine serve` and list it in engine.urls"
            )


def _require_gpus(setting: str, lists: Sequence[tuple[int, ...]], devices: Devices) -> None:
    """Raise ConfigError unless every GPU exists and none is listed twice."""
    every = [gpu for gpus in lists for gpu in gpus]
    if any(not gpus for gpus in lists) or not lists:
        raise ConfigError(f"{setting} holds an empty list: name at least one GPU")
    missing = [gpu for gpu in every if gpu >= len(devices.gpus)]
    if missing:
        last = f", numbered to {len(devices.gpus) - 1}" if devices.gpus else ""
        advice = "name others" if devices.gpus else "remove it, or use machines with GPUs"
        raise ConfigError(
            f"{setting} names GPU {missing[0]}, but the plan is for {devices.describe()}{last}: {advice}"
        )
    twice = [gpu for gpu in every if every.count(gpu) > 1]
    if twice:
        raise ConfigError(f"{setting} names GPU {twice[0]} twice: name each GPU once")


def _gpus(count: int) -> str:
    return _count(count, "GPU")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
