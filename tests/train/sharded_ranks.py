"""Save a training state on some ranks and load it on others; every rank is a process with gloo.

Run as `python -m tests.train.sharded_ranks DIRECTORY`; prints one line per world, then how it ended.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import AdamW, Optimizer

from hone.train.errors import CheckpointError
from hone.train.optimizer import BatchedMuon
from hone.train.sharded_state import begin_save, load

SHAPES = {"embed": (7, 6), "up": (8, 4), "down": (3, 8), "norm": (5,)}  # uneven over 2 and over 4 ranks
LAYOUTS = {
    "fsdp": [Shard(0)],
    "hybrid": [Replicate(), Shard(0)],
    "tensor": [Shard(0), Shard(1)],
}


def value(name: str, salt: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)) + salt)
    return torch.rand(SHAPES[name], generator=generator)


def state_of(
    layout: str | None, mesh: DeviceMesh | None, salt: int
) -> tuple[dict[str, Tensor], list[Optimizer]]:
    """Return weights and optimisers with their state, sharded over the mesh or plain without one."""

    def placed(tensor: Tensor) -> Tensor:
        if mesh is None or layout is None:
            return tensor
        places = [p if not p.is_shard() or p.dim < tensor.ndim else Replicate() for p in LAYOUTS[layout]]
        return distribute_tensor(tensor, mesh, places)

    weights = {name: torch.nn.Parameter(placed(value(name, salt))) for name in SHAPES}
    muon = BatchedMuon([weights["up"], weights["down"]], lr=1.0)
    adamw = AdamW([weights["embed"], weights["norm"]], fused=True)
    if salt:  # trained already
        for name in ("up", "down"):
            muon.state[weights[name]]["momentum_buffer"] = placed(value(name, salt + 1))
        for name in ("embed", "norm"):
            adamw.state[weights[name]].update(
                step=torch.tensor(float(salt)),
                exp_avg=placed(value(name, salt + 2)),
                exp_avg_sq=placed(value(name, salt + 3)),
            )
    return dict(weights), [muon, adamw]


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def require_loaded(weights: dict[str, Tensor], optimizers: list[Optimizer], salt: int) -> None:
    expected, others = state_of(None, None, salt)
    for name, tensor in weights.items():
        assert torch.equal(full(tensor), expected[name]), name
    for optimizer, other in zip(optimizers, others, strict=True):
        for name, tensor in weights.items():
            mine = optimizer.state.get(tensor, {})
            assert mine.keys() == other.state.get(expected[name], {}).keys(), name
            for key, kept in mine.items():
                assert torch.equal(full(kept), other.state[expected[name]][key]), (name, key)


def on_ranks(count: int, work: Callable[[int], None], rendezvous: Path) -> list[int]:
    """Run `work(rank)` in one forked process per rank under gloo; return how each ended."""
    pids: list[int] = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group(
                    "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count
                )
                work(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def mesh_of(layout: str | None, count: int) -> DeviceMesh | None:
    if layout is None:
        return None
    if layout == "fsdp":
        return init_device_mesh("cpu", (count,))
    return init_device_mesh("cpu", (2, count // 2))


def group_of() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    assert isinstance(group, dist.ProcessGroup)
    return group


def writes(folder: Path, layout: str, count: int, salt: int) -> Callable[[int], None]:
    def work(rank: int) -> None:
        weights, optimizers = state_of(layout, mesh_of(layout, count), salt)
        random.seed(100 + rank)
        wait = begin_save(folder, weights, optimizers, group=group_of())
        for tensor in weights.values():  # training goes on while the files are written
            tensor.data.zero_()
        dist.barrier()
        wait()

    return work


def reads(folder: Path, layout: str | None, count: int, salt: int, saved_by: int) -> Callable[[int], None]:
    def work(rank: int) -> None:
        weights, optimizers = state_of(layout, mesh_of(layout, count), 0)
        load(folder, weights, optimizers, group=group_of())
        require_loaded(weights, optimizers, salt)
        expected = random.Random(100 + rank).random()
        assert (random.random() == expected) == (rank < saved_by)

    return work


def one_dies(folder: Path) -> Callable[[int], None]:
    def work(rank: int) -> None:
        weights, optimizers = state_of("fsdp", mesh_of("fsdp", 2), 5)
        group = group_of()
        if rank == 1:
            FileSystemWriter.write_data = lambda *_: os._exit(9)  # type: ignore[method-assign]
        wait = begin_save(folder, weights, optimizers, group=group)
        with pytest.raises(CheckpointError, match="cannot be written: ") as error:
            wait()
        assert "\n" not in str(error.value)

    return work


def one_cannot_read(folder: Path) -> Callable[[int], None]:
    def work(rank: int) -> None:
        weights, optimizers = state_of("fsdp", mesh_of("fsdp", 2), 0)
        with pytest.raises(CheckpointError, match="No such file or directory"):
            load(folder if rank == 0 else folder / "elsewhere", weights, optimizers, group=group_of())

    return work


def main() -> None:
    directory = Path(sys.argv[1])
    worlds: dict[str, tuple[int, Callable[[int], None]]] = {}
    for salt, (layout, count) in enumerate((("fsdp", 2), ("tensor", 4), ("hybrid", 4)), start=1):
        folder = directory / layout
        worlds[f"{layout}{count} saves"] = (count, writes(folder, layout, count, salt))
        worlds[f"{layout}{count} to 1"] = (1, reads(folder, None, 1, salt, count))
        to = 4 if count == 2 else 2
        worlds[f"{layout}{count} to fsdp{to}"] = (to, reads(folder, "fsdp", to, salt, count))
    worlds["fsdp2 to fsdp2"] = (2, reads(directory / "fsdp", "fsdp", 2, 1, 2))
    worlds["fsdp2 to tensor4"] = (4, reads(directory / "fsdp", "tensor", 4, 1, 2))
    worlds["one cannot read"] = (2, one_cannot_read(directory / "fsdp"))
    worlds["one dies"] = (2, one_dies(directory / "died"))
    for name, (count, work) in worlds.items():
        print(f"{name}:", *on_ranks(count, work, directory / f"rendezvous {name}"), flush=True)


if __name__ == "__main__":
    main()
