"""Settings of a run that belong to no room below."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from hone.settings import Settings


class PlacementSettings(Settings):
    """Which devices belong to what. GPUs are numbered from 0, those of a second machine after the first's."""

    trainer: Literal["auto", "cpu", "mps"] | tuple[int, ...] = "auto"
    """Devices of the trainer: `cpu`, `mps`, or one GPU per rank. `auto`: the first GPUs; without a GPU, or
    with several `batch.workers`, the CPU."""

    engine: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    """GPUs of each engine server, such as [[0, 1], [2, 3]]; []: none of their own. `auto`: those after the
    trainer's, or the same ones with `colocate`; without a GPU, the CPU."""

    judge: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    """GPUs of each server of the judge. `auto`: those after the engine's."""

    teacher: Literal["auto"] | tuple[tuple[int, ...], ...] = "auto"
    """GPUs of each server of the teacher (`train.distill`). `auto`: those after the judge's."""

    colocate: bool = False
    """Let the engine's servers share the trainer's GPUs: while it trains they sleep and free their memory."""

    nodes: int = Field(default=1, ge=1)
    """Machines of the run, with equal devices. The run starts servers on the first one; list those of the
    others in `engine.urls`."""

    @field_validator("trainer", mode="before")
    @classmethod
    def _require_devices(cls, value: Any) -> Any:
        if value not in ("auto", "cpu", "mps") and not _numbers(value):
            raise ValueError(f'{value!r} is no device: set "auto", "cpu", "mps" or a list of GPUs, as [0, 1]')
        return value

    @field_validator("engine", "judge", "teacher", mode="before")
    @classmethod
    def _require_lists(cls, value: Any) -> Any:
        if value != "auto" and not (isinstance(value, (list, tuple)) and all(map(_numbers, value))):
            raise ValueError(
                f'{value!r} lists no servers: set "auto" or the GPUs of each, as [[0, 1], [2, 3]]'
            )
        return value


def _numbers(value: Any) -> bool:
    """Return whether `value` is a list of GPU numbers."""
    return isinstance(value, (list, tuple)) and all(type(gpu) is int and gpu >= 0 for gpu in value)
