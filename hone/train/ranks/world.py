"""Process groups and the device mesh of the ranks, from the environment that torchrun sets.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT

The mesh has four dimensions, the innermost last: ranks that split matrices (tensor) or sequences (sequence)
exchange the most and are neighbours, replicas exchange the least.

    replicate x fsdp x sequence x tensor

Weights, gradients and optimiser state are sharded over `fsdp` and `sequence` together ("shard" below): ranks
of one sequence need the same weights. Each (replicate, fsdp) pair computes its own passes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hone.train.errors import TrainError
from hone.train.settings import ParallelSettings

_FREE_SHARE = 0.5  # of a GPU's memory that must be free when a rank starts


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This rank's place among the ranks."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh  # (replicate, fsdp, sequence, tensor)
    shards: DeviceMesh  # what FSDP2 shards over: (shard), or (replicate, shard) with several copies
    control: dist.ProcessGroup  # all ranks, in host memory: flags and small results
    saving: dist.ProcessGroup  # all ranks, in host memory: checkpoints, beside the collectives of training

    @property
    def data_size(self) -> int:
        """Number of groups of ranks that compute different passes."""
        return self.mesh["replicate"].size() * self.mesh["fsdp"].size()

    @property
    def data_rank(self) -> int:
        """Index of this rank's group among `data_size`."""
        fsdp = self.mesh["fsdp"]
        return self.mesh["replicate"].get_local_rank() * fsdp.size() + fsdp.get_local_rank()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of `numbers` over all ranks, equal on every rank; float64."""
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return total.tolist()

    def close(self) -> None:
        dist.destroy_process_group()


def open_world(parallel: ParallelSettings, timeout_s: float) -> World:
    """Join the process groups; every collective ends after `timeout_s`.

    A rank uses the CUDA device LOCAL_RANK, or the CPU where there is no CUDA device. Raises TrainError when
    the ranks do not fill the mesh, or the machine has too few devices.
    """
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    shape = mesh_shape(parallel, size)
    device = _device(int(os.environ["LOCAL_RANK"]))
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "fsdp", "sequence", "tensor"))
    shards = mesh["fsdp", "sequence"]._flatten("shard")
    if mesh["replicate"].size() > 1:
        shards = DeviceMesh._concatenate([mesh["replicate"], shards])
    control, saving = (
        cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout)) for _ in range(2)
    )
    return World(
        rank=rank,
        size=size,
        device=device,
        mesh=mesh,
        shards=shards,
        control=control,
        saving=saving,
    )


def mesh_shape(parallel: ParallelSettings, ranks: int) -> tuple[int, int, int, int]:
    """Return the sizes (replicate, fsdp, sequence, tensor). Raises TrainError unless they fill `ranks`."""
    others = parallel.replicate * parallel.sequence * parallel.tensor
    fsdp = parallel.fsdp or max(1, ranks // others)
    if fsdp * others != ranks:
        raise TrainError(
            f"{ranks} ranks were started, but train.parallel has {fsdp * others} (replicate x fsdp x "
            "sequence x tensor): start as many, or change train.parallel"
        )
    return parallel.replicate, fsdp, parallel.sequence, parallel.tensor


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise TrainError(
            f"rank {local_rank} of this machine needs a GPU of its own, but only {count} can be used: set "
            "train.ranks to that number, or name more devices in [placement]"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    if free < _FREE_SHARE * total:
        raise TrainError(
            f"GPU {local_rank} has {free / 2**30:.1f} GiB free of {total / 2**30:.1f}: another process fills "
            "it; stop that process, or name other devices in [placement]"
        )
    return device
