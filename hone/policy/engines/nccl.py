"""Weights from the trainer's GPU to the servers' GPUs, without a file in between.

    join:     rank 0 is the trainer, the ranks from 1 on are the servers' GPUs; done anew when servers changed
    publish:  each server is told names, types and shapes, and waits; rank 0 broadcasts tensor after tensor

The requests are those that vLLM 0.32 and SGLang 0.5.15 document, and tests compare them with what a server
records. The collective itself needs GPUs, and the package of the server's kind installed beside Hone.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hone.policy.engine import EngineError
from hone.policy.engines.command import free_port
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.http import Http
from hone.policy.engines.replica import Replica
from hone.policy.errors import PolicyError
from hone.policy.settings import ServerEngineSettings

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

GROUP = "hone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a group meet."""

    address: str
    port: int
    world_size: int


class Sender(Protocol):
    """Rank 0. Its methods block, so they are called from a thread."""

    def join(self, meeting: Rendezvous) -> None: ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None: ...

    def leave(self) -> None: ...


class NcclUpdates:
    """Publishes `model`, which stays as it is meanwhile. Raises PolicyError where there is no GPU."""

    def __init__(
        self,
        fleet: Fleet,
        model: PreTrainedModel,
        settings: ServerEngineSettings,
        sender: Sender | None = None,
    ) -> None:
        self._fleet = fleet
        self._model = model
        self._receiver = {"vllm": VllmReceiver, "sglang": SglangReceiver}[settings.kind]
        self._sender = sender or _sender(settings.kind)
        self._timeout_s = settings.ready_timeout_s
        self._members: list[str] = []  # URLs of the servers in the group

    async def publish(self, version: int) -> None:
        """From its return on, the fleet samples from the model's present weights, as `version`.

        Raises EngineError; the servers are then brought up again without the new weights.
        """

        async def change(replicas: Sequence[Replica]) -> list[BaseException | None]:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._change(replicas, version)
            except (EngineError, TimeoutError, RuntimeError) as error:  # NCCL's errors are RuntimeErrors
                self._members = []
                failed = EngineError(f"the weights did not reach the servers over NCCL: {error!r}")
                return [failed for _ in replicas]
            return [None for _ in replicas]

        await self._fleet.change_weights(version, change)

    async def _change(self, replicas: Sequence[Replica], version: int) -> None:
        receivers = [self._receiver(replica.client.http) for replica in replicas]
        if self._members != [replica.client.url for replica in replicas]:
            await self._join(receivers)
            self._members = [replica.client.url for replica in replicas]
        named = [(name, tensor.detach()) for name, tensor in self._model.named_parameters()]
        manifest = Manifest(
            names=[name for name, _ in named],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            shapes=[list(tensor.shape) for _, tensor in named],
        )
        for replica in replicas:
            await replica.client.pause()
        tensors = [tensor for _, tensor in named]
        await asyncio.gather(
            *(receiver.receive(manifest, str(version), self._timeout_s) for receiver in receivers),
            asyncio.to_thread(self._sender.broadcast, tensors),
        )
        for replica in replicas:
            await replica.confirm_version(version)
            await replica.client.resume()

    async def _join(self, receivers: Sequence[Receiver]) -> None:
        await asyncio.gather(*(receiver.leave() for receiver in receivers))
        await asyncio.to_thread(self._sender.leave)
        sizes = [await receiver.world_size() for receiver in receivers]
        meeting = Rendezvous(address=_address(), port=free_port(""), world_size=1 + sum(sizes))
        offsets = [1 + sum(sizes[:index]) for index in range(len(sizes))]
        await asyncio.gather(
            *(
                receiver.join(meeting, offset, self._timeout_s)
                for receiver, offset in zip(receivers, offsets, strict=True)
            ),
            asyncio.to_thread(self._sender.join, meeting),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is broadcast, in order; types as torch names them, such as `bfloat16`."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class Receiver(Protocol):
    """A server's side of the group."""

    async def world_size(self) -> int:
        """GPUs of the server."""
        ...

    async def join(self, meeting: Rendezvous, rank_offset: int, timeout_s: float) -> None: ...

    async def receive(self, manifest: Manifest, label: str, timeout_s: float) -> None:
        """Returns once all tensors have come, are in use, and every cached key and value is forgotten."""
        ...

    async def leave(self) -> None: ...


class VllmReceiver:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def world_size(self) -> int:
        return int((await self._http.get("/get_world_size"))["world_size"])

    async def join(self, meeting: Rendezvous, rank_offset: int, timeout_s: float) -> None:
        info = {
            "master_address": meeting.address,
            "master_port": meeting.port,
            "rank_offset": rank_offset,
            "world_size": meeting.world_size,
            "packed": False,
        }
        await self._http.post("/init_weight_transfer_engine", {"init_info": info}, timeout_s=timeout_s)

    async def receive(self, manifest: Manifest, label: str, timeout_s: float) -> None:
        info = {"names": manifest.names, "dtype_names": manifest.dtypes, "shapes": manifest.shapes}
        await self._http.post("/start_weight_update", timeout_s=timeout_s)
        await self._http.post("/update_weights", {"update_info": info}, timeout_s=timeout_s)
        await self._http.post("/finish_weight_update", {"weight_version": label}, timeout_s=timeout_s)
        if not (await self._http.post("/reset_prefix_cache"))["success"]:
            raise EngineError(f"{self._http.url} could not drop the cache of its old weights")

    async def leave(self) -> None:
        await self._http.post("/shutdown_weight_transfer_engine")


class SglangReceiver:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def world_size(self) -> int:
        info = await self._http.get("/server_info")
        return int(info["tp_size"]) * int(info["pp_size"])

    async def join(self, meeting: Rendezvous, rank_offset: int, timeout_s: float) -> None:
        group = {
            "master_address": meeting.address,
            "master_port": meeting.port,
            "rank_offset": rank_offset,
            "world_size": meeting.world_size,
            "group_name": GROUP,
            "backend": "nccl",
        }
        _require(await self._http.post("/init_weights_update_group", group, timeout_s=timeout_s))

    async def receive(self, manifest: Manifest, label: str, timeout_s: float) -> None:
        update = {
            "names": manifest.names,
            "dtypes": manifest.dtypes,
            "shapes": manifest.shapes,
            "group_name": GROUP,
            "flush_cache": True,
            "weight_version": label,
        }
        _require(await self._http.post("/update_weights_from_distributed", update, timeout_s=timeout_s))

    async def leave(self) -> None:
        """A server that is in no group says so, which is as well."""
        try:
            await self._http.post("/destroy_weights_update_group", {"group_name": GROUP})
        except EngineError:
            return


class VllmSender:
    """Rank 0 of vLLM's own kind of group."""

    def __init__(self) -> None:
        self._group: Any = None

    def join(self, meeting: Rendezvous) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        place = {
            "master_address": meeting.address,
            "master_port": meeting.port,
            "world_size": meeting.world_size,
        }
        self._group = trainer_init(place)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        import torch

        for tensor in tensors:
            self._group.broadcast(tensor.cuda().contiguous(), src=0, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()

    def leave(self) -> None:
        if self._group is not None:
            self._group.destroy()
            self._group = None


class SglangSender:
    """Rank 0 of a process group of torch's, made beside the trainer's own."""

    def __init__(self) -> None:
        self._group: Any = None

    def join(self, meeting: Rendezvous) -> None:
        from sglang.srt.utils.common import init_custom_process_group

        self._group = init_custom_process_group(
            backend="nccl",
            init_method=f"tcp://{meeting.address}:{meeting.port}",
            world_size=meeting.world_size,
            rank=0,
            group_name=GROUP,
        )

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        import torch

        for tensor in tensors:
            torch.distributed.broadcast(tensor.cuda().contiguous(), src=0, group=self._group)
        torch.cuda.synchronize()

    def leave(self) -> None:
        import torch

        if self._group is not None:
            torch.distributed.destroy_process_group(self._group)
            self._group = None


def _sender(kind: str) -> Sender:
    import torch

    if not torch.cuda.is_available():
        raise PolicyError(
            'engine.weight_sync = "nccl" needs a GPU and a torch with CUDA: set it to "disk" on this machine'
        )
    return {"vllm": VllmSender, "sglang": SglangSender}[kind]()


def _require(answer: Any) -> None:
    if not answer["success"]:
        raise EngineError(f"the server did not take part in the update over NCCL: {answer['message']}")


def _address() -> str:
    """This machine's address, as others reach it."""
    return socket.gethostbyname(socket.gethostname())
