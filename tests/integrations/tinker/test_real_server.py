"""A real SkyRL server on a CPU, through the real SDK.

HONE_TEST_SKYRL_PYTHON names the interpreter of an environment with skyrl 0.4.0 and its JAX backend; the SDK
is installed beside Hone (`pip install 'tinker==0.25.0'`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from hone.integrations.tinker.engine import TinkerEngine
from hone.integrations.tinker.learner import TinkerLearner
from hone.integrations.tinker.mapping import Normalisation
from hone.integrations.tinker.service import Service
from hone.policy.engine import Sampling
from hone.policy.settings import TinkerEngineSettings
from hone.train.learner import LearnerSpec
from hone.train.loss import policy_objective
from hone.train.settings import BatchSettings, LoraSettings, LossSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer, rl_trainer
from tests.integrations.tinker.gradients import DESCENT, compare_step, downloaded
from tests.services.process import reserve_port, running, service_folder
from tests.train.examples import noisy, tiny_model, tokenizer, with_logprobs
from tests.train.trajectories import VOCABULARY, multi_turn_samples

PYTHON = os.environ.get("HONE_TEST_SKYRL_PYTHON", "")
pytestmark = [
    pytest.mark.full,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="HONE_TEST_SKYRL_PYTHON names no Python that has skyrl"),
    pytest.mark.xdist_group("skyrl"),
]
SERVER = Path(__file__).with_name("skyrl_server.py")
SETTINGS = TrainSettings(
    learner="tinker",
    steps=100,
    lora=LoraSettings(rank=4, alpha=32),
    loss=LossSettings(clip_high=0.28, kl_coef=0.1),
    batch=BatchSettings(),
    optimizer=DESCENT,
)
SAMPLES = noisy(with_logprobs(multi_turn_samples(12), tiny_model()), 0.2)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A model that a server serves."""
    pytest.importorskip("tinker", reason="the SDK is missing: pip install 'tinker==0.25.0'")
    with service_folder() as folder, pytest.MonkeyPatch.context() as patch:
        model = folder / "model"
        tiny_model().save_pretrained(model)
        tokenizer().save_pretrained(model)
        url = f"http://127.0.0.1:{reserve_port()}"
        command = [PYTHON, str(SERVER), str(model), str(folder / "server"), url.rpartition(":")[2]]

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/api/v1/healthz", timeout=5).is_success
            return False

        patch.setenv("TINKER_BASE_URL", url)
        patch.setenv("TINKER_API_KEY", "tml-any")
        with running(command, folder, answers):
            yield model


@pytest.fixture(scope="module")
def trainer(base: Path) -> Iterator[Trainer]:
    objective = policy_objective(SETTINGS.loss, 1.0)
    spec = LearnerSpec(
        model=base,
        dtype="float32",
        objective=objective,
        optimizer=SETTINGS.optimizer,
        passes=SETTINGS.batch,
        settings=SETTINGS,
    )
    learner = TinkerLearner(Service(str(base), timeout_s=900), spec, vocabulary=VOCABULARY)
    yield rl_trainer(learner, objective, SETTINGS)
    learner.close()


def learner_at(trainer: Trainer) -> TinkerLearner:
    assert isinstance(trainer.learner, TinkerLearner)
    return trainer.learner


def test_skyrl_means_over_tokens_and_rows_and_does_not_clip(trainer: Trainer):
    behaviour = learner_at(trainer).behaviour
    assert behaviour.normalisation is Normalisation.ROW_MEAN
    assert not behaviour.clips


def test_gradients_of_three_mini_batches_are_hones(trainer: Trainer):
    local = policy_trainer(tiny_model(), SETTINGS.model_copy(update={"learner": "in_process"}), temperature=1)
    for part in (SAMPLES[:5], SAMPLES[5:8], SAMPLES[8:]):
        compared = compare_step(trainer, local, part)
        print(compared)
        assert len(set(compared.lengths)) > 1
        assert compared.norm > 0
        assert compared.logprob_gap < 1e-5
        assert compared.error < 1e-5


def test_state_is_restored_with_its_optimiser(trainer: Trainer, tmp_path: Path):
    learner = learner_at(trainer)
    saved = downloaded(trainer)
    learner.save(tmp_path / "state")()
    trainer.step(SAMPLES[:4])
    after = downloaded(trainer)
    learner.load(tmp_path / "state")
    restored = downloaded(trainer)
    assert all(torch.equal(saved[name], tensor) for name, tensor in restored.items())
    trainer.step(SAMPLES[:4])
    again = downloaded(trainer)
    assert all(torch.equal(after[name], tensor) for name, tensor in again.items())


def test_engine_samples_from_the_trained_weights(trainer: Trainer, base: Path):
    async def run() -> None:
        settings = TinkerEngineSettings(context_tokens=64, request_timeout_s=900)
        engine = TinkerEngine(Service(str(base), timeout_s=900), settings, vocabulary=VOCABULARY)
        probe = np.arange(1, 9, dtype=np.int32)
        await engine.publish(learner_at(trainer), 1, probe, 1e-3)
        sampling = Sampling(max_tokens=12, seed=3, stop_token_ids=(1,))
        first = await engine.generate([5, 9, 2, 7], sampling, session="s")
        second = await engine.generate([5, 9, 2, 7], sampling, session="s")
        assert first.token_ids.tolist() == second.token_ids.tolist()
        whole = np.array([5, 9, 2, 7, *first.token_ids], np.int32)
        scored = learner_at(trainer).text_logprobs(whole)[3:]
        np.testing.assert_allclose(first.logprobs, scored, atol=1e-5)
        np.testing.assert_allclose(await engine.score(whole, 4), scored, atol=1e-5)
        assert set(first.version.tolist()) == {1}
        trainer.step(SAMPLES[:4])
        await engine.publish(learner_at(trainer), 2, probe, 1e-3)
        assert engine.version == 2
        await engine.close()

    asyncio.run(run())
