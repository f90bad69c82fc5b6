"""verl's engine "cpuvllm": a vLLM server, and weights that reach it through a folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray
import torch
from hone_verl_server import Server, folder
from safetensors.torch import save_file
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        name = f"hone_cpuvllm_{self.replica_rank}"
        server = Server.options(name=name).remote()
        model = self.model_config.path
        await server.launch.remote(model, self.config.max_model_len, self.config.max_num_seqs)
        self.servers, self._server_handle, self._server_address = [server], server, name


class Weights(BaseRollout):
    """In the trainer's process, or beside a separate server: writes the weights and tells the server."""

    def __init__(self, *args: Any, replica_rank: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replica_rank, self.is_leader_rank = replica_rank, True

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int = 0, **_: Any) -> None:
        tensors = {name: tensor async for name, tensor in _each(weights)}
        if not global_steps:
            return  # the server has started with these
        target = folder() / f"weights-{self.replica_rank}" / f"v{global_steps}"  # tests compute with each
        target.mkdir(parents=True)
        if "lm_head.weight" in tensors and self.model_config.hf_config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        save_file(tensors, target / "model.safetensors")
        _copy_json(Path(self.model_config.path), target)
        await ray.get_actor(f"hone_cpuvllm_{self.replica_rank}").load.remote(str(target), global_steps)


def _copy_json(source: Path, target: Path) -> None:
    for file in source.glob("*.json"):
        shutil.copy(file, target)


async def _each(weights: Any) -> AsyncIterator[tuple[str, torch.Tensor]]:
    if hasattr(weights, "__aiter__"):
        async for name, tensor in weights:
            yield name, tensor.detach().clone().contiguous()
    else:
        for name, tensor in weights:
            yield name, tensor.detach().clone().contiguous()


@CheckpointEngineRegistry.register("folder")
class FolderEngine(CheckpointEngine):
    """Carries weights from a trainer to separate servers through a folder."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, trainers: int, rollouts: int, metadata: list[Any]) -> tuple[dict, dict]:
        return {}, {}

    def init_process_group(self, **kwargs: Any) -> None: ...
    def finalize(self) -> None: ...

    def _path(self, global_steps: int | None) -> Path:
        return folder() / f"sent-{global_steps or 0}.pt"

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        tensors = {name: tensor async for name, tensor in _each(weights)}
        if self.is_master:
            partial = folder() / "sending.pt"
            torch.save(tensors, partial)
            partial.rename(self._path(global_steps))

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Any]:
        path = self._path(global_steps)
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        for name, tensor in torch.load(path).items():
            yield name, tensor
        path.unlink()
