"""Publishes the trainer's weights to the engine after each step."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from hone.config import ConfigError
from hone.launch.policy import Policy
from hone.policy.engine import Engine
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.nccl import NcclUpdates, open_sender
from hone.policy.engines.replica import Proof, WeightProbe
from hone.policy.local import LocalEngine
from hone.policy.model import load_model
from hone.policy.settings import EngineSettings, ServerEngineSettings
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner
from hone.train.lora import publish_adapters
from hone.train.publish import folder_fingerprint, published
from hone.utils.concurrency import run_in_thread

_TOLERANCE = {
    "float32": 1e-2,
    "bfloat16": 0.5,
}  # allowed difference of logprobs between two implementations, by dtype
Publish = Callable[[int], Awaitable[None]]


def publisher(
    engine: Engine, policy: Policy, learner: Learner, settings: EngineSettings, run_dir: Path
) -> Publish:
    """Return `publish(version)`, after which the engine samples from the learner's current weights.

    Raises ConfigError, EngineError, PolicyError, TrainError.
    """
    shared = isinstance(learner, InProcessLearner)  # its model is the policy's
    if not shared and isinstance(settings, ServerEngineSettings) and settings.weight_sync == "nccl":
        raise ConfigError(
            'engine.weight_sync = "nccl" sends the weights of this process, and train.learner is "ranks": '
            'set engine.weight_sync = "disk"'
        )
    alone = isinstance(settings, ServerEngineSettings) and settings.weight_sync == "adapter"
    folders = WeightFolders(run_dir / "weights", policy, learner, adapters_alone=alone)
    publish = _publisher(engine, policy, folders, settings)
    if shared:
        return publish

    async def publish_of_ranks(version: int) -> None:
        """Load what the ranks have written into this process's copy, which a local engine shares."""
        folder = await run_in_thread(folders.write, version)
        await run_in_thread(_load_in_place, policy, folder)
        await publish(version)

    return publish_of_ranks


def _load_in_place(policy: Policy, folder: Path) -> None:
    import torch

    written = load_model(folder, policy.settings.dtype)
    with torch.no_grad():
        for mine, theirs in zip(policy.model.parameters(), written.parameters(), strict=True):
            mine.copy_(theirs)


def _publisher(engine: Engine, policy: Policy, folders: WeightFolders, settings: EngineSettings) -> Publish:
    if isinstance(engine, LocalEngine):
        return engine.set_version
    assert isinstance(engine, Fleet), "an engine is local or a fleet of servers"
    assert isinstance(settings, ServerEngineSettings), "a fleet has the settings of servers"
    if settings.weight_sync == "nccl":
        sender = open_sender(settings.kind, policy.model.device)
        return NcclUpdates(
            engine, settings, sender, lambda: published(policy.model), lambda: make_probe(policy)
        ).publish

    async def publish(version: int) -> None:
        folder = await run_in_thread(folders.write, version)
        fingerprint = await run_in_thread(folder_fingerprint, folder)
        proof = Proof(fingerprint=fingerprint, probe=await asyncio.to_thread(make_probe, policy))
        await engine.load_weights(folder.resolve(), version, proof)
        await run_in_thread(folders.keep_only, folder)

    return publish


class WeightFolders:
    """Writes `weights/v<version>` (Hugging Face or peft folders) atomically and removes old versions."""

    def __init__(self, root: Path, policy: Policy, learner: Learner, *, adapters_alone: bool = False) -> None:
        self._root = root
        self._policy = policy
        self._learner = learner
        self._adapters_alone = adapters_alone

    def write(self, version: int) -> Path:
        """Write the learner's current weights; replace a folder that a killed run left."""
        folder = self._root / f"v{version}"
        partial = self._root / f".writing-{folder.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if self._adapters_alone:
            publish_adapters(self._policy.model, partial, base=self._policy.settings.path)
        else:
            self._learner.export(partial)
            self._policy.tokenizer.save_pretrained(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        return folder

    def keep_only(self, folder: Path) -> None:
        for other in self._root.iterdir():
            if other.name != folder.name:
                shutil.rmtree(other)


def make_probe(policy: Policy) -> WeightProbe:
    """Return the logprobs of the policy's current weights after a short prompt."""
    import torch

    prompt = policy.tokenizer.encode("The bug is in line 4", add_special_tokens=False)
    model = policy.model
    training = model.training
    model.eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt], device=model.device), use_cache=False).logits[0, -1]
        logprobs = torch.log_softmax(logits.float(), -1).cpu().numpy()
    model.train(training)
    return WeightProbe(prompt=tuple(prompt), logprobs=logprobs, tolerance=_TOLERANCE[policy.settings.dtype])
