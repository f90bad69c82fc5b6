"""verl on a machine without an accelerator, with a real vLLM server as its engine; no file of verl changes.

verl imports it in each of its processes: VERL_USE_EXTERNAL_MODULES=hone_verl_cpu VERL_PLATFORM=cpu
VERL_ENGINE_DEVICE=cuda VERL_ENGINE_VENDOR=nvidia, with this folder on PYTHONPATH. Ray's resource "GPU" is a
logical one: +ray_kwargs.ray_init.num_gpus=1. HONE_TEST_VLLM_PYTHON is the Python that has vLLM.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
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
from verl.workers.rollout.llm_server import LLMServerClient
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


def _then_rows(measure: Any) -> Any:
    """verl's comparison of log-probabilities, which each step of its trainer makes before its advantages."""

    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        _write_rows()
        return measure(data)

    return calculate_debug_metrics


def _write_rows() -> None:
    """From now on, write each batch as verl trains it."""
    trainer = sys.modules["verl.trainer.ppo.v1.trainer_base"]
    if not hasattr(trainer.compute_advantage_for_multi_trajectories, "writes_rows"):
        name = "compute_advantage_for_multi_trajectories"
        setattr(trainer, name, _with_rows(getattr(trainer, name)))


def _with_rows(compute: Any) -> Any:
    """Append one line of JSON to HONE_TEST_ROWS for each batch: its rows, with their advantages."""
    import transfer_queue

    def compute_advantages(data: Any, batch_keys: list[str], *args: Any, **kwargs: Any) -> Any:
        done = compute(data, batch_keys, *args, **kwargs)
        ids = transfer_queue.kv_batch_get(
            keys=batch_keys, partition_id="train", select_fields=["prompts", "responses"]
        )
        tags = transfer_queue.kv_list("train")["train"]
        rows = [
            _row(key, tags[key], ids["prompts"][index], ids["responses"][index], done.batch[index])
            for index, key in enumerate(batch_keys)
        ]
        with Path(os.environ["HONE_TEST_ROWS"]).open("a") as file:
            file.write(json.dumps(rows) + "\n")
        return done

    compute_advantages.writes_rows = True  # type: ignore[attr-defined]
    return compute_advantages


def _row(key: str, tag: dict[str, Any], prompt: Any, response: Any, batch: Any) -> dict[str, Any]:
    count = len(response)
    fields = ("response_mask", "rollout_log_probs", "old_log_probs", "advantages", "rm_scores")
    return {
        "key": key,
        "padding": bool(tag.get("is_padding")),
        "versions": [tag["min_global_steps"], tag["max_global_steps"]],
        "prompt": prompt.tolist(),
        "response": response.tolist(),
        **{name: batch[name][:count].tolist() for name in fields},
    }


debug_metrics.calculate_debug_metrics = _then_rows(debug_metrics.calculate_debug_metrics)


def _with_faults(generate: Any) -> Any:
    """verl's client, some of whose requests fail: those for which there is a file, see `inject_faults`."""
    groups: dict[str, int] = {}  # group -> its number, in the order of first requests
    requests: Counter[str] = Counter()  # rollout -> its requests so far

    async def failing(client: Any, request_id: str, **kwargs: Any) -> Any:
        from hone.policy.engine import EngineError

        group, _, index = request_id.rpartition("-")
        fault = f"fail-{groups.setdefault(group, len(groups))}-{index}-{requests[request_id]}"
        requests[request_id] += 1
        if (Path(os.environ["HONE_TEST_VERL_FOLDER"]) / fault).exists():
            raise EngineError("injected")
        return await generate(client, request_id, **kwargs)

    return failing


LLMServerClient.generate = _with_faults(LLMServerClient.generate)


def _replica() -> Any:
    from hone_verl_engine import Replica

    return Replica


rollout_base._ROLLOUT_REGISTRY["cpuvllm", "async"] = "hone_verl_engine.Weights"
RolloutReplicaRegistry.register("cpuvllm", _replica)
