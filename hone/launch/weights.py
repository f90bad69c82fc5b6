"""Publishes the trainer's weights to the engine after each step."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from hone.config import RunSettings
from hone.launch.policy import Policy
from hone.policy.engine import Engine
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.nccl import NcclUpdates
from hone.policy.engines.replica import Proof, WeightProbe
from hone.policy.local import LocalEngine
from hone.policy.model import load_model
from hone.policy.settings import ServerEngineSettings, TinkerEngineSettings
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner
from hone.train.lora import load_adapters, publish_adapters, publish_saved_adapters
from hone.train.publish import folder_fingerprint
from hone.utils.concurrency import run_in_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = {
    "float32": 1e-2,
    "bfloat16": 0.5,
}  # allowed difference of logprobs between two implementations, by dtype
Publish = Callable[[int], Awaitable[None]]


def publisher(engine: Engine, policy: Policy, learner: Learner, settings: RunSettings) -> Publish:
    """Return `publish(version)`, after which the engine samples from the learner's current weights.

    Raises EngineError, PolicyError, TrainError.
    """
    if isinstance(settings.engine, TinkerEngineSettings):
        return _service_publisher(engine, policy, learner)
    shared = isinstance(learner, InProcessLearner)  # its model is the policy's
    alone = isinstance(settings.engine, ServerEngineSettings) and settings.engine.weight_sync == "adapter"
    folders = WeightFolders(
        settings.run_dir / "weights", policy, learner, adapters_alone=alone, shared=shared
    )
    if isinstance(engine, LocalEngine):
        return _local_publisher(engine, learner, folders, partial=settings.rollout.partial)
    assert isinstance(engine, Fleet), "an engine is local or a fleet of servers"
    assert isinstance(settings.engine, ServerEngineSettings), "a fleet has the settings of servers"
    return _server_publisher(engine, policy, learner, folders, settings.engine)


def _local_publisher(
    engine: LocalEngine, learner: Learner, folders: WeightFolders, *, partial: bool
) -> Publish:
    async def mark(version: int) -> None:
        await engine.set_version(version)

    async def load(version: int) -> None:
        change = await run_in_thread(folders.read, engine.model, version)
        await engine.load_weights(change, version, partial=partial)

    # it shares the weights of a learner in this process, unless rollouts go on during a training step
    return mark if isinstance(learner, InProcessLearner) and engine.model is learner.model else load


def _server_publisher(
    engine: Fleet, policy: Policy, learner: Learner, folders: WeightFolders, settings: ServerEngineSettings
) -> Publish:
    if settings.weight_sync == "nccl":
        sender = learner.sender(settings.kind)
        return NcclUpdates(
            engine, settings, sender, learner.published, lambda: make_probe(policy, learner)
        ).publish

    async def publish(version: int) -> None:
        folder = await run_in_thread(folders.write, version)
        fingerprint = await run_in_thread(folder_fingerprint, folder)
        proof = Proof(fingerprint=fingerprint, probe=await run_in_thread(make_probe, policy, learner))
        await engine.load_weights(folder.resolve(), version, proof)
        await run_in_thread(folders.keep_only, folder)

    return publish


def _service_publisher(engine: Engine, policy: Policy, learner: Learner) -> Publish:
    from hone.integrations.tinker.engine import TinkerEngine  # only where it is used
    from hone.integrations.tinker.learner import TinkerLearner

    assert isinstance(engine, TinkerEngine), "an engine of the kind tinker"
    assert isinstance(learner, TinkerLearner), "`train` requires the learner of the same service"
    probe = np.asarray(_probe_prompt(policy), np.int32)

    async def publish(version: int) -> None:
        await engine.publish(learner, version, probe, _TOLERANCE[policy.settings.dtype])

    return publish


class WeightFolders:
    """Writes `weights/v<version>` (Hugging Face or peft folders) atomically and removes old versions.

    Beside ranks, only `read` loads a copy of the weights into this process, for a local engine.
    """

    def __init__(
        self,
        root: Path,
        policy: Policy,
        learner: Learner,
        *,
        adapters_alone: bool = False,
        shared: bool = True,
    ) -> None:
        """`shared`: whether the learner trains the policy's model itself, and not another copy."""
        self._root = root
        self._policy = policy
        self._learner = learner
        self._adapters_alone = adapters_alone
        self._shared = shared

    def write(self, version: int) -> Path:
        """Write the learner's current weights; replace a folder that a killed run left."""
        return self._replace(
            f"v{version}", self._write_adapters if self._adapters_alone else self._write_merged
        )

    def read(self, model: PreTrainedModel, version: int) -> Callable[[], None]:
        """Read the learner's current weights; return what puts them into `model`, a copy of the policy's."""
        if self._learner.adapted and not self._shared:  # the copy beside ranks has adapters of its own
            adapters = self._replace("adapters", self._learner.export_adapters)

            def change() -> None:
                load_adapters(model, adapters)
                shutil.rmtree(adapters)

            return change
        folder = self._replace(f"v{version}", self._write_merged)
        written = load_model(folder, self._policy.settings.dtype)
        self.keep_only(folder)
        return lambda: _copy_weights(written, model)

    def _write_adapters(self, folder: Path) -> None:
        base, dtype = self._policy.settings.path, getattr(torch, self._policy.settings.dtype)
        if self._shared:
            publish_adapters(self._policy.model, folder, base=base)
            return
        with TemporaryDirectory(prefix=".adapters-", dir=self._root) as saved:
            self._learner.export_adapters(Path(saved))
            publish_saved_adapters(Path(saved), folder, base=base, dtype=dtype)

    def _write_merged(self, folder: Path) -> None:
        self._learner.export(folder)
        self._policy.tokenizer.save_pretrained(folder)

    def _replace(self, name: str, write: Callable[[Path], None]) -> Path:
        """Return the folder `name`, which holds what `write` has put into it."""
        folder = self._root / name
        unfinished = self._root / f".writing-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        return folder

    def keep_only(self, folder: Path) -> None:
        for other in self._root.iterdir():
            if other.name != folder.name:
                shutil.rmtree(other)


def _copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_(theirs)


def _probe_prompt(policy: Policy) -> list[int]:
    return policy.tokenizer.encode("The bug is in line 4", add_special_tokens=False)


def make_probe(policy: Policy, learner: Learner) -> WeightProbe | None:
    """Return the logprobs of the learner's current weights after a short prompt; None if it has none."""
    prompt = _probe_prompt(policy)
    logprobs = learner.next_logprobs(prompt)
    if logprobs is None:
        return None
    return WeightProbe(prompt=tuple(prompt), logprobs=logprobs, tolerance=_TOLERANCE[policy.settings.dtype])
