"""Weights that TRL streams, into an engine of Hone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from hone.launch.policy import Policy
from hone.policy.engine import Engine, EngineError
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.replica import Proof
from hone.policy.local import LocalEngine
from hone.train.publish import folder_fingerprint
from hone.utils.concurrency import run_in_thread

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

NOT_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


async def load_weights(
    engine: Engine,
    policy: Policy,
    tensors: Iterator[tuple[str, Tensor]],
    version: int,
    *,
    root: Path,
    partial: bool,
) -> None:
    """Read all `tensors`, and return once the engine samples with them as `version`.

    Args:
        tensors: every parameter by its name in a Hugging Face checkpoint.
        root: where folders for engine servers are written; only the newest is kept.
    Raises:
        EngineError: a parameter of the model is missing or has another shape, or a server holds other
            weights than those that were sent.
    """
    found = await run_in_thread(lambda: {name: tensor.detach().cpu() for name, tensor in tensors})
    if isinstance(engine, LocalEngine):
        await engine.load_weights(lambda: copy_into(engine.model, found), version, partial=partial)
        return
    assert isinstance(engine, Fleet), "an engine is local or a fleet of servers"
    folder = root / f"v{version}"
    await run_in_thread(_write_folder, policy, found, folder)
    proof = Proof(fingerprint=await run_in_thread(folder_fingerprint, folder))
    await engine.load_weights(folder.resolve(), version, proof)
    await run_in_thread(_keep_only, folder)


def copy_into(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into the parameters of `model`. Raises EngineError."""
    with torch.no_grad():
        for name, own in model.named_parameters():
            if name not in tensors or tensors[name].shape != own.shape:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise EngineError(
                    f"the trainer sent {got} for {name}, which is {tuple(own.shape)} in the recipe's model: "
                    "train the model of model.path"
                )
            own.copy_(tensors[name])


def _write_folder(policy: Policy, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write a folder like that of the recipe's model with other weights, and remove older ones."""
    unfinished = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(policy.settings.path, unfinished, ignore=shutil.ignore_patterns(*NOT_WEIGHTS))
    dtype = getattr(torch, policy.settings.dtype)
    distinct = {name: tensor.to(dtype).clone() for name, tensor in tensors.items()}
    save_file(distinct, unfinished / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _keep_only(folder: Path) -> None:
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other)
