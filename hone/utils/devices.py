"""The GPUs and the memory of a machine, found without loading torch."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.utils.errors import HoneError

GIB = 2**30
_TIMEOUT_S = 20.0


class DeviceError(HoneError):
    """The GPUs of this machine cannot be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that this process may use."""

    name: str
    memory_gib: float
    free_gib: float
    processes: tuple[int, ...] = ()  # ids of the processes that use its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of one machine or, for a plan, of several equal machines (`nodes`)."""

    gpus: tuple[Gpu, ...]  # of all machines, those of the first one first
    host_gib: float  # memory of each machine
    nodes: int = 1
    mps: bool = False  # whether torch can use an Apple GPU

    @property
    def gpus_per_node(self) -> int:
        return len(self.gpus) // self.nodes

    def describe(self) -> str:
        """Return the devices in a few words, such as "2 machines with 8 GPUs of 80 GiB each"."""
        machines = "one machine" if self.nodes == 1 else f"{self.nodes} machines"
        if not self.gpus:
            return f"{machines} without a GPU, {self.host_gib:.0f} GiB of memory"
        each = "each" if len(self.gpus) > 1 else ""
        plural = "s" if self.gpus_per_node > 1 else ""
        memory = f"{min(gpu.memory_gib for gpu in self.gpus):.0f} GiB"
        return f"{machines} with {self.gpus_per_node} GPU{plural} of {memory} {each}".rstrip()


def equal_devices(
    gpus: int, memory_gib: float, *, nodes: int = 1, host_gib: float | None = None, name: str = ""
) -> Devices:
    """Return `nodes` machines with `gpus` empty GPUs each; `host_gib` defaults to twice their memory."""
    gpu = [Gpu(name=name, memory_gib=memory_gib, free_gib=memory_gib)] * gpus
    host = 2 * gpus * memory_gib if host_gib is None else host_gib
    return Devices(gpus=tuple(gpu * nodes), host_gib=host, nodes=nodes)


def repeated(machine: Devices, nodes: int) -> Devices:
    """Return `machine` and others like it, `nodes` in total, whose GPUs are empty."""
    empty = [dataclasses.replace(gpu, free_gib=gpu.memory_gib, processes=()) for gpu in machine.gpus]
    return dataclasses.replace(machine, gpus=(*machine.gpus, *empty * (nodes - 1)), nodes=nodes)


def find_devices(environment: Mapping[str, str] = os.environ) -> Devices:
    """Return the devices of this machine that CUDA_VISIBLE_DEVICES leaves to this process.

    Raises DeviceError if nvidia-smi is installed but fails, or CUDA_VISIBLE_DEVICES names no GPU of its list.
    """
    mps = platform.system() == "Darwin" and platform.machine() == "arm64"
    return Devices(gpus=_visible(_nvidia_gpus(), environment), host_gib=host_memory_gib(), mps=mps)


def visible_devices(gpus: Sequence[int], environment: Mapping[str, str] = os.environ) -> str:
    """Return CUDA_VISIBLE_DEVICES for a process that may use `gpus` of those that this process may use.

    Example: GPUs 0 and 2 of a process with CUDA_VISIBLE_DEVICES=4,5,6 -> "4,6".
    """
    own = environment.get("CUDA_VISIBLE_DEVICES")
    names = [part.strip() for part in own.split(",")] if own else [str(gpu) for gpu in range(max(gpus) + 1)]
    return ",".join(names[gpu] for gpu in gpus)


def host_memory_gib() -> float:
    """Return the memory that this process may use, in GiB: the machine's, or the control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(limit)
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdecimal():
            total = min(total, int(text))
    return total / GIB


def _visible(gpus: Mapping[str, tuple[str, Gpu]], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of CUDA_VISIBLE_DEVICES; all of them if it is not set.

    Args:
        gpus: index -> (UUID, GPU).
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(gpu for _, gpu in gpus.values())
    chosen: list[Gpu] = []
    for entry in filter(None, (part.strip() for part in wanted.split(","))):
        if entry == "-1":  # hides the rest
            break
        found = [gpu for index, (uuid, gpu) in gpus.items() if entry == index or uuid.startswith(entry)]
        if len(found) != 1:
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES names {entry!r}, and nvidia-smi lists GPUs "
                f"{', '.join(gpus) or 'none'}: correct it, or unset it"
            )
        chosen += found
    return tuple(chosen)


def _nvidia_gpus() -> dict[str, tuple[str, Gpu]]:
    """Return index -> (UUID, GPU) from nvidia-smi; {} if it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return {}
    processes: dict[str, list[int]] = {}
    for uuid, pid in _query("--query-compute-apps=gpu_uuid,pid"):
        processes.setdefault(uuid, []).append(int(pid))
    gpus: dict[str, tuple[str, Gpu]] = {}
    for index, uuid, name, total, free in _query("--query-gpu=index,uuid,name,memory.total,memory.free"):
        gpu = Gpu(
            name=name,
            memory_gib=float(total) / 1024,  # MiB
            free_gib=float(free) / 1024,
            processes=tuple(processes.get(uuid, ())),
        )
        gpus[index] = (uuid, gpu)
    return gpus


def _query(what: str) -> list[list[str]]:
    """Return the rows of one nvidia-smi query."""
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"nvidia-smi does not answer ({error}): check the NVIDIA driver") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = lines[0] if lines else f"exit code {done.returncode}"
        raise DeviceError(f"nvidia-smi lists no GPUs ({reason}): check the NVIDIA driver")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
