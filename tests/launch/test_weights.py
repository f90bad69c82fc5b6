"""Folders of published weights, and how an engine that shares the trainer's gets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.config import ConfigError, RunSettings
from hone.launch.policy import Policy, load_policy, open_chats, open_engine
from hone.launch.train import open_trainer, run_training
from hone.launch.weights import WeightFolders, make_probe, publisher
from hone.policy.engine import Sampling
from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.policy.errors import PolicyError
from hone.policy.local import LocalEngine
from hone.policy.model import load_model
from hone.policy.settings import LocalEngineSettings, ModelSettings, OpenAIEngineSettings
from hone.policy.tiny import make_tiny
from hone.train.in_process import InProcessLearner
from hone.train.lora import publish_adapters
from hone.train.loss import CrossEntropy
from hone.train.settings import LearnerSettings, LoraSettings, OptimizerSettings, PassSettings
from tests.policy.conftest import SETTINGS, TEXTS
from tests.policy.engines.conftest import fleet_over
from tests.policy.engines.sglang_server import sglang_servers, toy_logprobs
from tests.policy.engines.test_nccl import Recorder

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(TEXTS, tmp_path_factory.mktemp("model") / "m", SETTINGS)


@pytest.fixture
def settings(folder: Path, tmp_path: Path) -> RunSettings:
    return RunSettings(run_dir=tmp_path / "run", model=ModelSettings(path=folder))


@pytest.fixture
def policy(settings: RunSettings) -> Policy:
    return load_policy(settings)


def learner_of(policy: Policy) -> InProcessLearner:
    return InProcessLearner(
        policy.model, objective=CrossEntropy(), optimizer=OptimizerSettings(), passes=PassSettings()
    )


def test_weight_folder_holds_the_current_weights(policy: Policy, tmp_path: Path):
    folders = WeightFolders(tmp_path / "weights", policy, learner_of(policy))
    with torch.no_grad():
        policy.model.lm_head.weight.add_(1.0)
    written = folders.write(3)
    assert written == tmp_path / "weights" / "v3"
    read = load_model(written)
    assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), read.parameters(), strict=True))
    assert (written / "tokenizer.json").is_file()


def test_written_weights_and_probe_have_the_adapters(policy: Policy, tmp_path: Path):
    learner = InProcessLearner(
        policy.model,
        objective=CrossEntropy(),
        optimizer=OptimizerSettings(),
        passes=PassSettings(),
        settings=LearnerSettings(lora=LoraSettings(rank=4)),
    )
    before = make_probe(policy, learner).logprobs
    with torch.no_grad():
        for adapter in learner.masters:
            adapter.add_(0.05)
    probe = make_probe(policy, learner)
    written = load_model(WeightFolders(tmp_path / "weights", policy, learner).write(1))
    with torch.inference_mode():
        logits = written(torch.tensor([probe.prompt])).logits[0, -1]
    assert torch.allclose(torch.from_numpy(probe.logprobs), torch.log_softmax(logits, -1), atol=1e-5)
    assert abs(probe.logprobs - before).max() > 1e-2


class InAnotherProcess:
    """A learner whose model this process does not share."""

    def __init__(self, folder: Path, lora: LoraSettings | None) -> None:
        self._learner = InProcessLearner(
            load_model(folder),
            objective=CrossEntropy(),
            optimizer=OptimizerSettings(),
            passes=PassSettings(),
            settings=LearnerSettings(lora=lora),
        )
        self.model, self.adapted = self._learner.model, lora is not None
        self.export, self.export_adapters = self._learner.export, self._learner.export_adapters

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self._learner.masters:
                parameter.add_(0.05)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_local_engine_samples_from_the_weights_of_ranks(
    policy: Policy, settings: RunSettings, folder: Path, lora: LoraSettings | None
):
    learner = InAnotherProcess(folder, lora)
    ids = torch.arange(20)[None]

    async def run() -> None:
        async with open_engine(policy, settings) as engine:
            publish = publisher(engine, policy, learner, settings)  # type: ignore[arg-type]
            for version in range(3):
                await publish(version)
                with torch.no_grad():
                    ours, theirs = policy.model(ids).logits, learner.model(ids).logits
                assert torch.allclose(ours, theirs, atol=1e-6)
                before = theirs
                learner.train()
                with torch.no_grad():
                    assert not torch.allclose(learner.model(ids).logits, before, atol=1e-3)

    asyncio.run(run())
    left = [path.name for path in (settings.run_dir / "weights").iterdir()]
    assert left == ([] if lora else ["v2"])


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
@pytest.mark.parametrize("shared", [True, False], ids=["in process", "ranks"])
def test_engine_of_another_precision_samples_from_rounded_weights(
    policy: Policy, settings: RunSettings, folder: Path, lora: LoraSettings | None, shared: bool
):
    own = settings.model_copy(update={"engine": LocalEngineSettings(dtype="bfloat16")})
    learner: Any = InAnotherProcess(folder, lora)
    if shared:
        learner = InProcessLearner(
            policy.model,
            objective=CrossEntropy(),
            optimizer=OptimizerSettings(),
            passes=PassSettings(),
            settings=LearnerSettings(lora=lora),
        )
    trained_weights = [p for p in learner.model.parameters() if p.requires_grad]
    ids = torch.arange(20)[None]

    async def run() -> None:
        async with open_engine(policy, own) as engine:
            assert isinstance(engine, LocalEngine)
            weights = {p.dtype for name, p in engine.model.named_parameters() if "lora" not in name}
            assert weights == {torch.bfloat16}
            publish = publisher(engine, policy, learner, own)
            for version in range(2):
                await publish(version)
                with torch.no_grad():
                    sampled, trained = (m(ids).logits.float() for m in (engine.model, learner.model))
                    assert 1e-5 < (sampled - trained).abs().max() < 0.05 * trained.abs().max()
                    for parameter in trained_weights:
                        parameter.add_(0.05)

    asyncio.run(run())
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}


def test_adapters_of_ranks_are_published_alone(policy: Policy, folder: Path, tmp_path: Path):
    learner = InAnotherProcess(folder, LoraSettings(rank=4))
    root = tmp_path / "weights"
    folders = WeightFolders(root, policy, learner, adapters_alone=True, shared=False)  # type: ignore[arg-type]
    folders.write(1)
    learner.train()
    written = folders.write(2)
    assert sorted(path.name for path in root.iterdir()) == ["v1", "v2"]
    expected = tmp_path / "expected"
    publish_adapters(learner.model, expected, base=policy.settings.path)
    for file in sorted(expected.iterdir()):
        assert (written / file.name).read_bytes() == file.read_bytes()


class WithToyWeights(InAnotherProcess):
    """Its weights are those that a toy server computes with."""

    def __init__(self, folder: Path, lora: LoraSettings | None, vocabulary: int) -> None:
        super().__init__(folder, lora)
        self._vocabulary = vocabulary
        self.probed = 0
        self.export = self._export

    def _export(self, folder: Path) -> None:
        self._learner.export(folder)
        (folder / "toy.json").write_text('{"seed": 0}')

    def next_logprobs(self, prompt: Sequence[int]) -> np.ndarray:
        self.probed += 1
        return toy_logprobs(0, prompt[-1], self._vocabulary)

    def sender(self, kind: str) -> Sender:
        return Recorder()

    def published(self) -> PublishedWeights:
        return self._learner.published()

    def close(self) -> None:
        self._learner.close()


@pytest.mark.parametrize(("sync", "lora"), [("disk", None), ("disk", {}), ("adapter", {}), ("nccl", None)])
def test_run_with_ranks_and_servers_loads_no_model(
    policy: Policy, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, lora: Any
):
    """The ranks give the log-probabilities that a server is compared with."""
    train = {"learner": "ranks", "ranks": 2, "lora": lora}
    engine = {"kind": "sglang", "urls": ["http://127.0.0.1:1"], "weight_sync": sync}
    settings = RunSettings.model_validate(
        {"run_dir": tmp_path / "run", "model": {"path": folder}, "train": train, "engine": engine}
    )
    ranks = WithToyWeights(folder, settings.train.lora, len(policy.tokenizer))
    monkeypatch.setattr("hone.train.ranks.learner.RanksLearner", lambda *_, **__: ranks)
    for module in ("policy", "weights"):
        monkeypatch.setattr(f"hone.launch.{module}.load_model", lambda *_: pytest.fail("a model is loaded"))

    async def run() -> int:
        async with (
            sglang_servers(policy.tokenizer, 1) as toys,
            fleet_over(toys, policy.tokenizer) as fleet,
        ):
            with open_trainer(policy, settings) as trainer:
                publish = publisher(fleet, policy, trainer.learner, settings)
                await publish(1)
                await publish(2)
            return fleet.version

    assert asyncio.run(run()) == 2
    assert ranks.probed == 2
    folders = [path.name for path in settings.run_dir.glob("weights/*")]
    assert folders == ([] if sync == "nccl" else ["v2"])


@pytest.mark.parametrize(
    ("lora", "engine", "refusal"),
    [
        (None, {}, "this run trains all weights: set train.lora"),
        ({"targets": ["all-linear", "experts"]}, {}, "does not send adapters of experts: remove experts"),
        ({"rank": 32}, {}, "train.lora.rank is 32, .* up to rank 16"),
    ],
)
def test_adapters_that_servers_cannot_load_are_refused(
    settings: RunSettings, lora: dict[str, Any] | None, engine: dict[str, Any], refusal: str
):
    chosen = {"engine": {"kind": "vllm", "weight_sync": "adapter", **engine}, "train": {"lora": lora}}
    changed = RunSettings.model_validate({**settings.model_dump(include={"run_dir", "model"}), **chosen})
    with pytest.raises(ConfigError, match=refusal):
        asyncio.run(run_training(changed, None, None, tasks=[]))  # type: ignore[arg-type]


def test_leftover_weights_are_replaced_and_old_ones_removed(policy: Policy, tmp_path: Path):
    root = tmp_path / "weights"
    folders = WeightFolders(root, policy, learner_of(policy))
    folders.write(1)
    (root / ".writing-v2").mkdir()  # killed while it wrote
    (root / "v2").mkdir()  # written by a run that was rolled back
    written = folders.write(2)
    assert any(written.glob("*.safetensors"))
    folders.keep_only(written)
    assert [path.name for path in root.iterdir()] == ["v2"]


def test_probe_holds_the_logprobs_of_the_weights(policy: Policy):
    probe = make_probe(policy, learner_of(policy))
    with torch.inference_mode():
        logits = policy.model(torch.tensor([probe.prompt])).logits[0, -1]
    assert torch.allclose(torch.from_numpy(probe.logprobs), torch.log_softmax(logits, -1), atol=1e-6)


def test_local_engine_receives_the_weight_version(policy: Policy, settings: RunSettings):
    async def run() -> list[int]:
        async with open_engine(policy, settings) as engine:
            assert isinstance(engine, LocalEngine)
            learner = learner_of(policy)
            await publisher(engine, policy, learner, settings)(4)
            reply = await engine.generate([5, 6], Sampling(max_tokens=3), session="s")
            return reply.version.tolist()

    assert asyncio.run(run()) == [4, 4, 4]
    assert not (settings.run_dir / "weights").exists()


def openai(settings: RunSettings, **changes: object) -> RunSettings:
    engine = OpenAIEngineSettings.model_validate(
        {"kind": "openai", "urls": ["http://127.0.0.1:1/v1"], "model_name": "big", "retries": 0, **changes}
    )
    return settings.model_copy(update={"engine": engine})


def test_text_engine_is_rejected_for_training(policy: Policy, settings: RunSettings):
    async def run() -> None:
        async with open_engine(policy, openai(settings)):
            pass

    with pytest.raises(ConfigError, match=r"returns no token ids, for `hone eval` only"):
        asyncio.run(run())


def test_unset_api_key_variable_is_named(settings: RunSettings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SOME_KEY", raising=False)

    async def run() -> None:
        async with open_chats(openai(settings, api_key_env="SOME_KEY")):
            pass

    with pytest.raises(PolicyError, match="environment variable SOME_KEY is not set"):
        asyncio.run(run())


class Held:
    """Holds the replies of an engine after some steps, until the next weight update has been asked for."""

    def __init__(self, engine: LocalEngine, steps: int) -> None:
        self.reached, self._let_go = threading.Event(), threading.Event()
        self._left = steps
        engine.model.get_input_embeddings().register_forward_pre_hook(self._step)
        self._load = engine.load_weights
        engine.load_weights = self._load_weights  # type: ignore[method-assign]

    def _step(self, *_: Any) -> None:
        self._left -= 1
        if self._left < 0 and not self._let_go.is_set():
            self.reached.set()
            assert self._let_go.wait(60)

    async def _load_weights(self, *args: Any, **kwargs: Any) -> None:
        update = asyncio.create_task(self._load(*args, **kwargs))
        await asyncio.sleep(0)  # now it waits for the end of the step
        self._let_go.set()
        await update


@pytest.mark.parametrize("partial", [False, True])
def test_engine_of_an_asynchronous_run_keeps_its_weights_until_they_are_published(
    policy: Policy, settings: RunSettings, partial: bool
):
    rollout = settings.rollout.model_copy(update={"max_staleness": 1, "partial": partial})
    asynchronous = settings.model_copy(update={"rollout": rollout})
    ids = torch.arange(20)[None]

    async def run() -> None:
        async with open_engine(policy, asynchronous) as engine:
            assert isinstance(engine, LocalEngine)
            learner = learner_of(policy)
            publish = publisher(engine, policy, learner, asynchronous)
            await publish(0)
            with torch.no_grad():
                before = engine.model(ids).logits
                for parameter in learner.masters:
                    parameter.add_(0.05)
                assert torch.equal(engine.model(ids).logits, before)
            held = Held(engine, steps=5)
            reply = asyncio.create_task(engine.generate([5, 6], Sampling(max_tokens=20), session="s"))
            assert await asyncio.to_thread(held.reached.wait, 60)
            await publish(1)
            with torch.no_grad():
                assert torch.equal(engine.model(ids).logits, policy.model(ids).logits)
            versions = set((await reply).version.tolist())
            assert versions == ({0, 1} if partial else {0})

    asyncio.run(run())
