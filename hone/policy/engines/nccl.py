"""Send weights from the trainer's GPU to the servers' GPUs without files.

    join:     form a group: the trainer is rank 0, the servers' GPUs follow; repeated when servers change
    publish:  send names, dtypes and shapes to each server, then broadcast the tensors in this order

The requests follow the documentation of vLLM 0.32 and SGLang 0.5.15; tests check the requests that a server
records. The collective needs GPUs and the server's package in the trainer's environment.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from hone.policy.engine import EngineError
from hone.policy.engines.client import Http
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.managed_server import free_port
from hone.policy.engines.replica import Replica
from hone.policy.errors import PolicyError
from hone.policy.settings import ServerEngineSettings

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# Only `engine.weight_sync = "nccl"` uses this module, an option for the coming asynchronous pipeline. No test
# runs the collective, which needs GPUs.
GROUP = "hone"
Rendezvous = dict[str, Any]  # where the ranks connect: master_address, master_port, world_size
Manifest = dict[str, list[Any]]  # names, dtypes (such as `bfloat16`) and shapes of the tensors, in order


class Sender(Protocol):
    """Rank 0 of the group. Its methods block: call them from a thread."""

    def join(self, rendezvous: Rendezvous) -> None: ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None: ...

    def leave(self) -> None: ...


class NcclUpdates:
    """Publishes the weights of `model`; they must not change during `publish`.

    Raises PolicyError on a machine without a GPU.
    """

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
        """Update all servers to the model's current weights, labelled `version`.

        Raises EngineError; the fleet then restarts the servers with the previous weights.
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
        parameters = [(name, tensor.detach()) for name, tensor in self._model.named_parameters()]
        manifest: Manifest = {
            "names": [name for name, _ in parameters],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in parameters],
            "shapes": [list(tensor.shape) for _, tensor in parameters],
        }
        for replica in replicas:
            await replica.client.pause()
        tensors = [tensor for _, tensor in parameters]
        await asyncio.gather(
            *(receiver.receive(manifest, str(version), self._timeout_s) for receiver in receivers),
            asyncio.to_thread(self._sender.broadcast, tensors),
        )
        for replica in replicas:
            await replica.confirm_version(version)
            await replica.client.resume()

    async def _join(self, receivers: Sequence[VllmReceiver | SglangReceiver]) -> None:
        await asyncio.gather(*(receiver.leave() for receiver in receivers))
        await asyncio.to_thread(self._sender.leave)
        sizes = [await receiver.world_size() for receiver in receivers]
        rendezvous: Rendezvous = {
            "master_address": socket.gethostbyname(socket.gethostname()),
            "master_port": free_port(""),
            "world_size": 1 + sum(sizes),
        }
        places = [{**rendezvous, "rank_offset": 1 + sum(sizes[:index])} for index in range(len(sizes))]
        await asyncio.gather(
            *(
                receiver.join(place, self._timeout_s)
                for receiver, place in zip(receivers, places, strict=True)
            ),
            asyncio.to_thread(self._sender.join, rendezvous),
        )


class VllmReceiver:
    """A vLLM server's side of the group. `receive` returns once it uses the new tensors only."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def world_size(self) -> int:
        """Return the number of the server's GPUs."""
        return int((await self._http.get("/get_world_size"))["world_size"])

    async def join(self, place: Rendezvous, timeout_s: float) -> None:
        info = {**place, "packed": False}
        await self._http.post("/init_weight_transfer_engine", {"init_info": info}, timeout_s=timeout_s)

    async def receive(self, manifest: Manifest, label: str, timeout_s: float) -> None:
        info = {
            "names": manifest["names"],
            "dtype_names": manifest["dtypes"],
            "shapes": manifest["shapes"],
        }
        await self._http.post("/start_weight_update", timeout_s=timeout_s)
        await self._http.post("/update_weights", {"update_info": info}, timeout_s=timeout_s)
        await self._http.post("/finish_weight_update", {"weight_version": label}, timeout_s=timeout_s)
        if not (await self._http.post("/reset_prefix_cache"))["success"]:
            raise EngineError(f"{self._http.url} could not drop the KV cache of its old weights")

    async def leave(self) -> None:
        await self._http.post("/shutdown_weight_transfer_engine")


class SglangReceiver:
    """An SGLang server's side of the group. `receive` returns once it uses the new tensors only."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def world_size(self) -> int:
        """Return the number of the server's GPUs."""
        info = await self._http.get("/server_info")
        return int(info["tp_size"]) * int(info["pp_size"])

    async def join(self, place: Rendezvous, timeout_s: float) -> None:
        group = {**place, "group_name": GROUP, "backend": "nccl"}
        await self._require_success("/init_weights_update_group", group, timeout_s)

    async def receive(self, manifest: Manifest, label: str, timeout_s: float) -> None:
        update = {**manifest, "group_name": GROUP, "flush_cache": True, "weight_version": label}
        await self._require_success("/update_weights_from_distributed", update, timeout_s)

    async def leave(self) -> None:
        """Leave the group; a server without a group answers with an error, which is ignored."""
        with suppress(EngineError):
            await self._http.post("/destroy_weights_update_group", {"group_name": GROUP})

    async def _require_success(self, path: str, body: dict[str, Any], timeout_s: float) -> None:
        answer = await self._http.post(path, body, timeout_s=timeout_s)
        if not answer["success"]:
            raise EngineError(f"the server rejected the NCCL update: {answer['message']}")


class VllmSender:
    """Rank 0 of a vLLM weight transfer group."""

    def __init__(self) -> None:
        self._group: Any = None

    def join(self, rendezvous: Rendezvous) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        self._group = trainer_init(rendezvous)

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
    """Rank 0 of a torch process group, separate from the trainer's own group."""

    def __init__(self) -> None:
        self._group: Any = None

    def join(self, rendezvous: Rendezvous) -> None:
        from sglang.srt.utils.common import init_custom_process_group

        self._group = init_custom_process_group(
            backend="nccl",
            init_method=f"tcp://{rendezvous['master_address']}:{rendezvous['master_port']}",
            world_size=rendezvous["world_size"],
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
            'engine.weight_sync = "nccl" needs a GPU and PyTorch with CUDA: set it to "disk" on this machine'
        )
    return {"vllm": VllmSender, "sglang": SglangSender}[kind]()
