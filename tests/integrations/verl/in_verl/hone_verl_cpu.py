"""verl on a machine without an accelerator, with a real vLLM server as its engine; no file of verl changes.

verl imports it in each of its processes: VERL_USE_EXTERNAL_MODULES=hone_verl_cpu VERL_PLATFORM=cpu
VERL_ENGINE_DEVICE=cuda VERL_ENGINE_VENDOR=nvidia, with this folder on PYTHONPATH. Ray's resource "GPU" is a
logical one: +ray_kwargs.ray_init.num_gpus=1. HONE_TEST_VLLM_PYTHON is the Python that has vLLM.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed
import verl.utils.debug.metrics as debug_metrics
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

_NOTHING = (
    *("empty_cache", "synchronize", "ipc_collect", "set_per_process_memory_fraction", "set_device"),
    *("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
    "reset_peak_memory_stats",
)


class _Device(ModuleType):
    """`torch.cpu` with the functions of `torch.cuda` that verl calls."""

    def __init__(self) -> None:
        super().__init__("cpu")
        for name in _NOTHING:
            setattr(self, name, lambda *_, **__: 0)
        self.is_available = lambda: True
        self.device_count = lambda: 1
        self.current_device = lambda: 0
        self.mem_get_info = lambda *_: (1 << 34, 1 << 34)
        self.get_device_name = lambda *_: "cpu"
        self.get_rng_state, self.set_rng_state = torch.get_rng_state, torch.set_rng_state
        self.manual_seed = self.manual_seed_all = torch.manual_seed

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


_DEVICE = _Device()


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...
    def cudart(self) -> Any: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def _join_group_once(init: Any) -> Any:
    """verl names gloo twice where the device is the CPU, which torch refuses."""

    def init_process_group(backend: str | None = None, **kwargs: Any) -> None:
        parts = dict.fromkeys((backend or "").split(","))
        init(backend=",".join(parts) or None, **kwargs)

    return init_process_group


torch.distributed.init_process_group = _join_group_once(torch.distributed.init_process_group)


def _with_logprobs(measure: Any) -> Any:
    """Add the largest difference of log-probabilities, and the rows, to verl's comparison of both sides."""

    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        mask = data.batch["response_mask"].bool()
        gap = (data.batch["rollout_log_probs"] - data.batch["old_log_probs"]).abs()[mask]
        stray = data.batch["rollout_log_probs"][~mask].abs()
        found = {
            "hone/logprob_gap": float(gap.max()) if len(gap) else 0.0,
            "hone/stray_logprob": float(stray.max()) if len(stray) else 0.0,
            "hone/rows": float(mask.any(dim=1).sum()),
            "hone/trained_tokens": float(mask.sum()),
        }
        if log := os.environ.get("HONE_TEST_METRICS"):
            with Path(log).open("a") as file:
                file.write(json.dumps(found) + "\n")
        return {**measure(data), **found}

    return calculate_debug_metrics


debug_metrics.calculate_debug_metrics = _with_logprobs(debug_metrics.calculate_debug_metrics)


def _replica() -> Any:
    from hone_verl_engine import Replica

    return Replica


rollout_base._ROLLOUT_REGISTRY["cpuvllm", "async"] = "hone_verl_engine.Weights"
RolloutReplicaRegistry.register("cpuvllm", _replica)
