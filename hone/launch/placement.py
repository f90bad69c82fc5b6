"""Resolve [placement] on this machine before anything is started."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hone.config import RunSettings
from hone.config.placement import devices_of_run, resolve_placement
from hone.config.run import Command
from hone.config.settings import PlacementSettings
from hone.policy.engine import Engine
from hone.policy.engines.fleet import Fleet
from hone.utils.devices import find_devices


def place(settings: RunSettings, command: Command) -> RunSettings:
    """Return the settings with the devices of this machine in place of `auto`.

    `placement.engine`, `.judge` and `.teacher` are then () for servers that have no GPU of their own, and
    `placement.colocate` says whether the engine sleeps while training. Raises ConfigError, DeviceError.
    """
    found = resolve_placement(settings, devices_of_run(settings, find_devices()), command)
    placement = PlacementSettings(
        trainer="auto" if found.trainer == "none" else found.trainer,
        engine=found.engine,
        judge=found.judge,
        teacher=found.teacher,
        colocate=found.sleeps,
        nodes=settings.placement.nodes,
    )
    return settings.model_copy(update={"placement": placement})


def place_trainer(settings: RunSettings) -> RunSettings:
    """Return the settings with the trainer's devices on this machine, for a run without an engine.

    Raises ConfigError, DeviceError.
    """
    return place(settings, "replay")


def trainer_device(settings: RunSettings) -> str:
    """Return the trainer's device in this process, as torch names it; the CPU before `place`."""
    trainer = settings.placement.trainer
    if settings.train.learner == "ranks":
        return "cpu"  # the GPUs are those of the ranks
    if isinstance(trainer, tuple):
        return f"cuda:{trainer[0]}"
    return "cpu" if trainer == "auto" else trainer


def trainer_gpus(settings: RunSettings) -> tuple[int, ...] | None:
    """Return the GPUs of the trainer's ranks; None if they use the CPU."""
    trainer = settings.placement.trainer
    return trainer if isinstance(trainer, tuple) else None


def engine_gpus(settings: RunSettings) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of each server that the run starts; () if `place` gave them none."""
    gpus = settings.placement.engine
    return () if gpus == "auto" or settings.engine.addresses else gpus


@asynccontextmanager
async def while_training(engine: Engine, settings: RunSettings) -> AsyncGenerator[None]:
    """Let the trainer have the memory of the GPUs that it shares with the engine."""
    if not (settings.placement.colocate and isinstance(engine, Fleet)):
        yield
        return
    async with engine.asleep():
        try:
            yield
        finally:
            _free_cached_memory()


def _free_cached_memory() -> None:
    """Give the memory back that torch keeps in this process for its next tensors."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
