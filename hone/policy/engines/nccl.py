"""Send weights from the trainer's GPU to the servers' GPUs without files.

    join:     form a group: the trainer's GPU (of ranks, the first one's) is rank 0, the servers' GPUs follow;
              repeated when servers change
    publish:  send names, dtypes and shapes to each server, broadcast the tensors in this order, then verify
              what the servers hold

The requests follow the documentation of vLLM 0.32 and SGLang 0.5.15; tests check the requests that a server
records. The collective needs GPUs and the server's package in the trainer's environment.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from hone.policy.engine import EngineError
from hone.policy.engines.client import Http
from hone.policy.engines.fingerprint import Fingerprint
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.managed_server import free_port
from hone.policy.engines.replica import Proof, Replica, WeightProbe
from hone.policy.errors import PolicyError
from hone.policy.settings import ServerEngineSettings
from hone.utils.concurrency import task_group

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROUP = "hone"
_LEAVE_S = 15.0  # after a failure, until a group that does not end is left behind
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Rendezvous = dict[str, Any]  # where the ranks connect: master_address, master_port, world_size
Manifest = dict[str, list[Any]]  # names, dtypes (such as `bfloat16`) and shapes of the tensors, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """The tensors of one version, by the names that a Hugging Face checkpoint has."""

    manifest: Manifest
    tensors: Callable[[], Iterable[Tensor]]  # in the manifest's order; none where the ranks have them
    fingerprint: Fingerprint


class Sender(Protocol):
    """Rank 0 of the group. Its methods block: call them from a thread.

    They raise EngineError, NCCL's RuntimeErrors and, where rank 0 is a rank of the learner, RankError.
    """

    @property
    def in_group(self) -> bool:
        """Whether `join` has succeeded, and neither `leave` nor a restart of rank 0 came after it."""
        ...

    def address(self) -> tuple[str, int]:
        """Return the address of rank 0's machine and a free port of it, where the group meets."""
        ...

    def join(self, rendezvous: Rendezvous) -> None: ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None: ...

    def leave(self) -> None:
        """End the group, also while another thread blocks in `broadcast`, which then returns or raises."""
        ...


class NcclUpdates:
    """Publishes weights, which must not change during `publish`.

    Args:
        weights: returns the present weights.
        probe: returns their logprobs, for a server that cannot show its weights.
        sender: see `open_sender`.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: ServerEngineSettings,
        sender: Sender,
        weights: Callable[[], PublishedWeights],
        probe: Callable[[], WeightProbe | None] = lambda: None,
    ) -> None:
        self._fleet = fleet
        self._receiver = {"vllm": VllmReceiver, "sglang": SglangReceiver}[settings.kind]
        self._sender = sender
        self._weights = weights
        self._probe = probe
        self._timeout_s = settings.ready_timeout_s
        self._threads = _DaemonThreads()
        self._members: list[str] = []  # URLs of the servers in the group

    async def publish(self, version: int) -> None:
        """Update all servers to the current weights, labelled `version`, and verify what they hold.

        Raises WeightMismatch when a server then holds other weights, and EngineError when the transfer fails
        or takes longer than `ready_timeout_s`; the fleet then restarts the servers with the previous weights.
        Any other error of the sender, such as RankError, is raised after the servers were stopped: they may
        wait for the sender for ever. The fleet restarts them, and the next call waits for one.
        """
        await self._fleet.wait_for_healthy()
        weights = await asyncio.to_thread(self._weights)
        proof = Proof(fingerprint=weights.fingerprint, probe=await asyncio.to_thread(self._probe))

        async def change(replicas: Sequence[Replica]) -> list[BaseException | None]:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._change(replicas, version, weights)
            except (EngineError, TimeoutError, RuntimeError) as error:  # NCCL's errors are RuntimeErrors
                await self._abandon_group()
                failed = EngineError(f"the weights did not reach the servers over NCCL: {error!r}")
                return [failed for _ in replicas]
            except Exception as error:
                await self._abandon_group()
                await asyncio.gather(*(replica.process.stop() for replica in replicas))
                for replica in replicas:
                    replica.mark_unhealthy(f"{replica.process.name} was stopped in an update: {error!r}")
                raise
            checks = (replica.verify_weights(version, proof, self._timeout_s) for replica in replicas)
            return await asyncio.gather(*checks, return_exceptions=True)

        await self._fleet.change_weights(version, change)

    async def _change(self, replicas: Sequence[Replica], version: int, weights: PublishedWeights) -> None:
        receivers = [self._receiver(replica.client.http) for replica in replicas]
        if not self._sender.in_group or self._members != [replica.client.url for replica in replicas]:
            await self._join(receivers)
            self._members = [replica.client.url for replica in replicas]
        for replica in replicas:
            await replica.client.pause()
        async with task_group() as tasks:  # the first error ends the other waits
            for receiver in receivers:
                tasks.create_task(receiver.receive(weights.manifest, str(version), self._timeout_s))
            tasks.create_task(self._in_thread(lambda: self._sender.broadcast(weights.tensors())))
        for replica in replicas:
            await replica.confirm_version(version)
            await replica.client.resume()

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _abandon_group(self) -> None:
        """End the group after a failure, so that a broadcast which waits for a receiver ends, too."""
        self._members = []
        with suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(_LEAVE_S):
                await self._in_thread(self._sender.leave)

    async def _join(self, receivers: Sequence[VllmReceiver | SglangReceiver]) -> None:
        await asyncio.gather(*(receiver.leave() for receiver in receivers))
        await self._in_thread(self._sender.leave)
        sizes = [await receiver.world_size() for receiver in receivers]
        host, port = await self._in_thread(self._sender.address)
        rendezvous: Rendezvous = {
            "master_address": host,
            "master_port": port,
            "world_size": 1 + sum(sizes),
        }
        async with task_group() as tasks:
            for index, receiver in enumerate(receivers):
                place = {**rendezvous, "rank_offset": 1 + sum(sizes[:index])}
                tasks.create_task(receiver.join(place, self._timeout_s))
            tasks.create_task(self._in_thread(lambda: self._sender.join(rendezvous)))


class _DaemonThreads(Executor):
    """Runs each call in a thread that does not keep the process alive: a collective may block for ever."""

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()

        def work() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        future.set_running_or_notify_cancel()
        threading.Thread(target=work, name="hone-nccl", daemon=True).start()
        return future


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


class GroupSender:
    """What senders on this machine have in common."""

    _group: Any = None

    @property
    def in_group(self) -> bool:
        return self._group is not None

    def address(self) -> tuple[str, int]:
        return own_address()


class _CudaSender(GroupSender):
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        import torch

        with torch.cuda.device(self._device):
            for tensor in tensors:
                self._send(tensor.to(self._device).contiguous())
            torch.cuda.synchronize()

    def _send(self, tensor: Tensor) -> None:
        raise NotImplementedError


class VllmSender(_CudaSender):
    """Rank 0 of a vLLM weight transfer group, on `device`."""

    def join(self, rendezvous: Rendezvous) -> None:
        import torch
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        with torch.cuda.device(self._device):
            self._group = trainer_init(rendezvous)

    def _send(self, tensor: Tensor) -> None:
        import torch

        self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())

    def leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.destroy()  # aborts what is under way


class SglangSender(_CudaSender):
    """Rank 0 of a torch process group, separate from the trainer's own group, on `device`."""

    def join(self, rendezvous: Rendezvous) -> None:
        import torch
        from sglang.srt.utils.common import init_custom_process_group

        with torch.cuda.device(self._device):
            self._group = init_custom_process_group(
                backend="nccl",
                init_method=f"tcp://{rendezvous['master_address']}:{rendezvous['master_port']}",
                world_size=rendezvous["world_size"],
                rank=0,
                group_name=GROUP,
            )

    def _send(self, tensor: Tensor) -> None:
        import torch

        torch.distributed.broadcast(tensor, src=0, group=self._group)

    def leave(self) -> None:
        import torch

        group, self._group = self._group, None
        if group is not None:
            group.abort()  # what is under way
            torch.distributed.destroy_process_group(group)


def own_address() -> tuple[str, int]:
    """Return this machine's address and a free port."""
    return socket.gethostbyname(socket.gethostname()), free_port("")


OpenSender = Callable[[str, "torch.device"], Sender]


def open_sender(kind: str, device: torch.device) -> Sender:
    """Return rank 0 on the trainer's `device`, which no server may use. Raises PolicyError for a CPU."""
    if device.type != "cuda":
        raise PolicyError(
            f'engine.weight_sync = "nccl" needs the trainer on a GPU, and it is on {device}: set '
            'engine.weight_sync to "disk", or placement.trainer to a GPU'
        )
    return {"vllm": VllmSender, "sglang": SglangSender}[kind](device)
