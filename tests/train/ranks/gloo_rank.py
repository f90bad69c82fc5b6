"""A rank that sends weights over gloo instead of NCCL; used in place of `hone.train.ranks.worker`.

The receiver is in the process of the test: `receive`. `break_next` lets the next broadcast fail or block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from hone.policy.engines.nccl import GroupSender, Manifest, Rendezvous, Sender

FOLDER = "HONE_TEST_SENDER"
TIMEOUT = timedelta(seconds=60)


class GlooSender(GroupSender):
    """Rank 0 of a group with the receiver. Its second tensor is where it fails or blocks."""

    def __init__(self, faults: Path) -> None:
        self._faults = faults
        self._left = threading.Event()

    def join(self, rendezvous: Rendezvous) -> None:
        self._left.clear()
        self._group = group_at(rendezvous, rank=0)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for index, tensor in enumerate(tensors):
            if index == 1:
                self._break()
            self._group.broadcast(as_bytes(tensor.contiguous()), 0).wait()

    def leave(self) -> None:
        self._group = None
        self._left.set()

    def _break(self) -> None:
        fault = next(iter(self._faults.iterdir()), None)
        if fault is None:
            return
        fault.unlink()
        if fault.name == "block":
            assert self._left.wait(60), "nothing ended the broadcast"
        raise RuntimeError("NCCL error: unhandled system error")


def group_at(rendezvous: Rendezvous, rank: int) -> ProcessGroupGloo:
    host, port = rendezvous["master_address"], rendezvous["master_port"]
    store = TCPStore(host, port, is_master=False, timeout=TIMEOUT)
    return ProcessGroupGloo(PrefixStore(f"{rendezvous['group']}", store), rank, 2, TIMEOUT)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a view of any dtype that gloo sends."""
    return tensor.flatten().view(torch.uint8)


def receive(rendezvous: Rendezvous, manifest: Manifest) -> dict[str, Tensor]:
    """Return the tensors of the manifest as rank 0 sends them; blocks."""
    group = group_at(rendezvous, rank=1)
    received: dict[str, Tensor] = {}
    for name, dtype, shape in zip(*(manifest[key] for key in ("names", "dtypes", "shapes")), strict=True):
        received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast(as_bytes(received[name]), 0).wait()
    return received


def break_next(faults: Path, fault: str) -> None:
    """Let the next broadcast `fail`, or `block` until the sender leaves."""
    (faults / fault).touch()


def open_gloo(kind: str, device: torch.device) -> Sender:
    assert (kind, device.type) == ("vllm", "cpu")
    return GlooSender(Path(os.environ[FOLDER]))


if __name__ == "__main__":
    from hone.train.ranks.worker import main

    assert not dist.is_initialized()
    main(open_gloo)
