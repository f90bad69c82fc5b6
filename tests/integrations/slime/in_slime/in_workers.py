"""What runs in Ray's workers beside slime's actors and Hone's hooks."""

from __future__ import annotations

from typing import Any

import psutil
import torch
from slime.utils.accelerator import register_accelerator
from slime.utils.accelerator.torch_accelerator import TorchAccelerator

from hone.integrations.slime.data_source import DataSource

CLIENT = "reviewing_client.py"


class Cpu(TorchAccelerator):
    """slime knows GPUs alone, and its engine actor asks for the number of one."""

    name = device_type = "cpu"
    communication_backend_name = "gloo"

    def _module(self) -> Any:
        return torch.cpu

    def resolve_visible_device_id(self, physical_device_id: Any) -> int:
        return int(physical_device_id)


def use_cpu() -> None:
    """Run in each worker before its actor."""
    register_accelerator("cpu", Cpu, lambda: True)


class RecordedSource(DataSource):
    """Hone's data source that keeps the groups it has handed out."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.handed_out: list[list[Any]] = []

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        groups = super().get_samples(num_samples)
        self.handed_out += groups
        return groups


def after_rollout(manager: Any, kept: set[int]) -> dict[str, Any]:
    """Give back the groups that slime has aborted, and count the clients that still run in sandboxes."""
    source = manager.data_source
    handed_out, source.handed_out = source.handed_out, []
    aborted = [group for group in handed_out if any(sample.status.value == "aborted" for sample in group)]
    assert kept.isdisjoint(group[0].group_index for group in aborted)
    source.add_samples(aborted)
    children = psutil.Process().children(recursive=True)
    return {
        "handed_out": [group[0].group_index for group in handed_out],
        "given_back": [group[0].group_index for group in aborted],
        "clients": sum(CLIENT in " ".join(_command(child)) for child in children),
    }


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
