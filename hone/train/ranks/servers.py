"""Send the weights of all ranks to the engine servers over NCCL.

    ServerGroup    on each rank; rank 0 is in the servers' group, with its own GPU
    RanksSender    (learner.py) in the process of the run: forwards to the ranks, which alone hold weights

Every rank gathers every tensor, layer by layer and in the same order. If rank 0 cannot send, it gathers the
rest without sending: the ranks stay usable, and the run gets an EngineError.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hone.policy.engine import EngineError
from hone.policy.engines.fingerprint import TensorDigest
from hone.policy.engines.nccl import OpenSender, Rendezvous, Sender
from hone.policy.errors import PolicyError
from hone.train.errors import TrainError
from hone.train.publish import digest_of
from hone.train.ranks.world import World

_LEAVE_S = 30.0  # for the end of an old group, before rank 0 joins a new one


class ServerGroup:
    """One rank's part of the transfer; all ranks make the same calls, except `leave`."""

    def __init__(self, world: World, open_sender: OpenSender) -> None:
        self._world = world
        self._open_sender = open_sender
        self._sender: Sender | None = None  # of rank 0
        self._leaving: threading.Thread | None = None

    def open(self, kind: str) -> None:
        """Raise TrainError unless rank 0 can send to servers of `kind`."""
        if self._world.rank == 0 and self._sender is None:
            try:
                self._sender = self._open_sender(kind, self._world.device)
            except PolicyError as error:
                raise TrainError(str(error)) from None

    def join(self, rendezvous: Rendezvous) -> None:
        """Join the servers with rank 0; blocks. Raises EngineError."""
        if self._sender is None:
            return
        if self._leaving is not None:
            self._leaving.join(_LEAVE_S)
            if self._leaving.is_alive():
                raise EngineError(f"rank 0 did not leave the servers' old group within {_LEAVE_S:g} s")
        try:
            self._sender.join(rendezvous)
        except Exception as error:
            raise EngineError(f"rank 0 could not join the engine servers: {error!r}") from error

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Send `tensors` with rank 0, and iterate over all of them on every rank.

        Raises EngineError when the sender fails, after the iteration.
        """
        gathered = _Gathered(tensors)
        try:
            if self._sender is not None:
                self._sender.broadcast(gathered)
        except Exception as error:
            if gathered.error is not None:  # of the collective of the ranks, which are out of step
                raise gathered.error from None
            raise EngineError(f"rank 0 could not send the weights: {error!r}") from error
        finally:
            for _ in gathered:
                pass

    def leave(self) -> None:
        """Let rank 0 leave the servers' group, in a thread; ends a `broadcast` in another thread."""
        if self._sender is None or (self._leaving is not None and self._leaving.is_alive()):
            return
        self._leaving = threading.Thread(target=self._sender.leave, name="hone-leave", daemon=True)
        self._leaving.start()


class _Gathered:
    """Iterates once over tensors, in several parts if need be, and keeps the error of gathering one."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.error: Exception | None = None
        self._tensors = iter(tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        try:
            return next(self._tensors)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def shared_digests(tensors: Iterable[tuple[str, Tensor]], world: World) -> dict[str, TensorDigest]:
    """Return the digest of each tensor, in order, on every rank; each rank computes its share of them."""
    names: list[str] = []
    own: dict[str, TensorDigest] = {}
    for index, (name, tensor) in enumerate(tensors):
        names.append(name)
        if index % world.size == world.rank:
            own[name] = digest_of(tensor)
    parts: list[Any] = [None] * world.size
    dist.all_gather_object(parts, own, group=world.control)
    return {name: parts[index % world.size][name] for index, name in enumerate(names)}
