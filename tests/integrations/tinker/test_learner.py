"""The learner at a service, against the learner in this process with the same adapters."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.integrations.tinker.learner import TinkerLearner
from hone.integrations.tinker.mapping import Normalisation
from hone.integrations.tinker.service import Service, ServiceError
from hone.train import checkpoint
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.gspo import GspoSettings
from hone.train.algorithms.registry import AnyAlgorithmSettings
from hone.train.batches import TrainRow
from hone.train.checkpoint import TrainState
from hone.train.corrections import AnyCorrectionSettings, NoCorrectionSettings, TruncateSettings
from hone.train.errors import CheckpointError, NonFinite, StepCancelled, TrainError
from hone.train.learner import LearnerSpec
from hone.train.lora import adapter_tensors
from hone.train.loss import policy_objective
from hone.train.settings import BatchSettings, LoraSettings, LossSettings, OptimizerSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer, rl_trainer
from tests.integrations.tinker import fake_sdk
from tests.integrations.tinker.fake_sdk import Server
from tests.train.examples import model_of, noisy, tiny_model, tokenizer, with_logprobs
from tests.train.trajectories import VOCABULARY, multi_turn_samples

pytestmark = pytest.mark.model

SAMPLES = noisy(with_logprobs(multi_turn_samples(8), tiny_model()), 0.2)
INF = float("inf")


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", fake_sdk)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings_of(
    *,
    learner: str = "tinker",
    loss: LossSettings | None = None,
    algorithm: AnyAlgorithmSettings | None = None,
    corrections: AnyCorrectionSettings | None = None,
    mini_batches: int = 2,
    max_grad_norm: float = INF,
    rank: int = 4,
) -> TrainSettings:
    return TrainSettings.model_validate(
        {
            "learner": learner,
            "steps": 100,
            "lora": LoraSettings(rank=rank, alpha=32),
            "algorithm": algorithm or GrpoSettings(),
            "corrections": corrections or NoCorrectionSettings(),
            "loss": loss or LossSettings(),
            "batch": BatchSettings(mini_batches=mini_batches),
            "optimizer": OptimizerSettings(lr=1e-3, weight_decay=0.1, max_grad_norm=max_grad_norm),
        }
    )


def trainer_at(server: Server, base: Path, settings: TrainSettings) -> Trainer:
    fake_sdk.ServiceClient.server = server
    objective = policy_objective(settings.loss, 1.0, settings.algorithm)
    spec = LearnerSpec(
        model=base,
        dtype="float32",
        objective=objective,
        optimizer=settings.optimizer,
        passes=settings.batch,
        settings=settings,
    )
    service = Service(fake_sdk.NAME, timeout_s=60)
    return rl_trainer(TinkerLearner(service, spec, vocabulary=VOCABULARY), objective, settings)


def learner_at(trainer: Trainer) -> TinkerLearner:
    assert isinstance(trainer.learner, TinkerLearner)
    return trainer.learner


def adapters_at(trainer: Trainer) -> dict[str, torch.Tensor]:
    client: fake_sdk.TrainingClient = learner_at(trainer).training._client
    return {name: tensor.detach().clone() for name, tensor in client.adapters().items()}


def own_adapters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in adapter_tensors(model_of(trainer))}


CASES = {
    "grpo": settings_of(),
    "kl_and_dual_clip": settings_of(loss=LossSettings(kl_coef=0.1, dual_clip=1.5, clip_high=0.3)),
    "sequence_ratios": settings_of(algorithm=GspoSettings()),
    "recomputed": settings_of(
        loss=LossSettings(old_logprobs="recomputed"), corrections=TruncateSettings(), mini_batches=1
    ),
}


@pytest.mark.parametrize(
    ("case", "row_mean"),
    [
        *((case, True) for case in CASES),
        ("grpo", False),
        *(pytest.param(case, False, marks=pytest.mark.full) for case in CASES if case != "grpo"),
    ],
)
def test_training_is_that_of_the_learner_in_process(case: str, row_mean: bool, base: Path):
    settings = CASES[case]
    remote = trainer_at(Server(tiny_model(), row_mean=row_mean), base, settings)
    local = policy_trainer(
        tiny_model(), settings.model_copy(update={"learner": "in_process"}), temperature=1.0
    )
    for _ in range(2):
        found, expected = remote.step(SAMPLES), local.step(SAMPLES)
        for name in ("loss", "grad_norm", "ratio_mean_deviation", "clip_fraction", "logp_gap_max"):
            if name in expected:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    trained = own_adapters(local)
    for name, tensor in adapters_at(remote).items():
        torch.testing.assert_close(tensor, trained[name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("row_mean", [True, False])
@pytest.mark.parametrize("clips", [True, False])
def test_behaviour_of_a_service_is_measured(row_mean: bool, clips: bool, base: Path):
    server = Server(tiny_model(), row_mean=row_mean, clips=clips)
    behaviour = learner_at(trainer_at(server, base, settings_of())).behaviour
    assert behaviour.normalisation is (Normalisation.ROW_MEAN if row_mean else Normalisation.SUM)
    assert behaviour.clips is clips


def test_unknown_normalisation_is_refused(base: Path):
    server = Server(tiny_model(), row_mean=False, divides_by_batch_tokens=True)
    with pytest.raises(ServiceError, match="Hone cannot train on it"):
        trainer_at(server, base, settings_of())


def test_clipping_is_refused_where_the_service_ignores_it(base: Path):
    with pytest.raises(TrainError, match="max_grad_norm is 1: set it to inf"):
        trainer_at(Server(tiny_model()), base, settings_of(max_grad_norm=1.0))


def test_clipping_service_clips_as_hone_does(base: Path):
    settings = settings_of(max_grad_norm=0.05)
    remote = trainer_at(Server(tiny_model(), clips=True), base, settings)
    local = policy_trainer(
        tiny_model(), settings.model_copy(update={"learner": "in_process"}), temperature=1.0
    )
    remote.step(SAMPLES), local.step(SAMPLES)
    trained = own_adapters(local)
    for name, tensor in adapters_at(remote).items():
        torch.testing.assert_close(tensor, trained[name], atol=2e-5, rtol=0)


def rows() -> list[TrainRow]:
    return [
        TrainRow(sample=sample, scale=sample.weight, old_logprobs=sample.logprobs) for sample in SAMPLES[:2]
    ]


def test_rows_of_a_step_come_in_one_call_where_their_number_divides(base: Path):
    learner = learner_at(trainer_at(Server(tiny_model()), base, settings_of()))
    learner.forward_backward(rows())
    with pytest.raises(TrainError, match="must come in one call"):
        learner.forward_backward(rows())


def test_gradients_of_two_calls_add_up_where_they_are_sums(base: Path):
    one = trainer_at(Server(tiny_model(), row_mean=False), base, settings_of())
    two = trainer_at(Server(tiny_model(), row_mean=False), base, settings_of())
    learner_at(one).forward_backward(rows())
    for row in rows():
        learner_at(two).forward_backward([row])
    assert learner_at(one).optim_step(1e-3) == pytest.approx(learner_at(two).optim_step(1e-3), rel=1e-5)


def test_checkpoint_continues_the_training(base: Path, tmp_path: Path):
    server = Server(tiny_model())
    trainer = trainer_at(server, base, settings_of())
    trainer.step(SAMPLES)
    saved = checkpoint.save(
        tmp_path / "saved", TrainState(step=0), trainer=trainer, tokenizer=tokenizer(), keep=1
    )
    trainer.step(SAMPLES)
    again = trainer_at(server, base, settings_of())
    assert checkpoint.restore(saved, again).step == 0
    again.step(SAMPLES)
    expected = adapters_at(trainer)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in adapters_at(again).items())


def test_export_merges_the_adapters_of_the_service(base: Path, tmp_path: Path):
    trainer = trainer_at(Server(tiny_model()), base, settings_of())
    trainer.step(SAMPLES)
    trainer.learner.export(tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    (at_service,) = trainer.logprobs(SAMPLES[:1])
    (expected,) = with_logprobs(SAMPLES[:1], merged)
    np.testing.assert_allclose(at_service, expected.logprobs, atol=1e-5)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


def test_state_of_another_rank_is_refused(base: Path, tmp_path: Path):
    server = Server(tiny_model())
    learner_at(trainer_at(server, base, settings_of())).save(tmp_path / "state")()
    other = learner_at(trainer_at(server, base, settings_of(rank=2)))
    with pytest.raises(CheckpointError, match="'rank': 4"):
        other.load(tmp_path / "state")


def test_state_of_another_learner_is_refused(base: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="no state of a Tinker service"):
        learner_at(trainer_at(Server(tiny_model()), base, settings_of())).load(tmp_path)


def test_lost_gradient_is_not_trained_on(base: Path):
    server = Server(tiny_model())
    learner = learner_at(trainer_at(server, base, settings_of()))
    learner.forward_backward(rows())
    server.failures = [ConnectionError("the server is gone")]
    with pytest.raises(ServiceError, match="ConnectionError: the server is gone"):
        learner.optim_step(1e-3)
    with pytest.raises(TrainError, match="resume from the last checkpoint"):
        learner.optim_step(1e-3)


def test_cleared_gradient_is_not_trained_on(base: Path):
    learner = learner_at(trainer_at(Server(tiny_model()), base, settings_of()))
    learner.forward_backward(rows())
    learner.clear_gradients()
    with pytest.raises(TrainError, match="no service can forget one"):
        learner.optim_step(1e-3)


def test_loss_that_is_not_finite_reaches_no_service(base: Path):
    server = Server(tiny_model())
    learner = learner_at(trainer_at(server, base, settings_of()))
    server.calls.clear()
    (row, _) = rows()
    broken = TrainRow(sample=row.sample, scale=row.scale * np.float32(np.nan), old_logprobs=row.old_logprobs)
    with pytest.raises(NonFinite):
        learner.forward_backward([broken])
    assert server.calls == ["forward"]


def test_cancelled_call_raises_and_the_next_one_runs(base: Path):
    learner = learner_at(trainer_at(Server(tiny_model()), base, settings_of()))
    learner.cancel()
    with pytest.raises(StepCancelled):
        learner.service.call("a wait", threading.Event().wait)
    assert learner.service.call("an answer", lambda: 5) == 5


def test_call_that_takes_too_long_is_an_error(base: Path):
    fake_sdk.ServiceClient.server = Server(tiny_model())
    service = Service(fake_sdk.NAME, timeout_s=0.01)
    with pytest.raises(ServiceError, match=r"a wait took more than engine.request_timeout_s \(0.01 s\)"):
        service.call("a wait", threading.Event().wait)


def test_key_is_in_no_error(monkeypatch: pytest.MonkeyPatch, base: Path):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    learner = learner_at(trainer_at(Server(tiny_model()), base, settings_of()))

    def fail() -> None:
        raise ConnectionError("refused for tml-secret")

    with pytest.raises(ServiceError) as raised:
        learner.service.call("a call", fail)
    assert "tml-secret" not in str(raised.value)


def test_model_that_is_not_served_is_named(base: Path):
    fake_sdk.ServiceClient.server = Server(tiny_model())
    with pytest.raises(ServiceError, match=r"serves tiny, and not Qwen/Qwen3-8B: set engine.base_model"):
        Service("Qwen/Qwen3-8B", timeout_s=60)


def test_untested_sdk_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fake_sdk, "__version__", "0.38.0")
    with pytest.raises(ServiceError, match=r"SDK 0.38.0 is installed.*pip install 'tinker==0.25.0'"):
        Service(fake_sdk.NAME, timeout_s=60)


def test_missing_sdk_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ServiceError, match=r"pip install 'tinker==0.25.0'"):
        Service(fake_sdk.NAME, timeout_s=60)
