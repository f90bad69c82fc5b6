"""prime-rl's trainer as a learner, beside Hone's own from the same start."""

from __future__ import annotations

import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from hone.config import RunSettings
from hone.integrations.prime_rl.configuration import to_toml, trainer_config
from hone.integrations.prime_rl.learner import PrimeRLLearner
from hone.train.algorithms.cispo import CispoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.gspo import GspoSettings
from hone.train.errors import CheckpointError, StepCancelled, TrainError
from hone.train.learner import LearnerSpec
from hone.train.loss import policy_objective
from hone.train.prime_rl_settings import PrimeRLSettings
from hone.train.settings import (
    BatchSettings,
    LoraSettings,
    LossSettings,
    OptimizerSettings,
    TrainSettings,
)
from hone.train.trainer import policy_trainer, rl_trainer
from hone.types import Sample
from tests.integrations.prime_rl.stand_in import StandIn
from tests.train.examples import model_of, noisy, tiny_model, with_logprobs
from tests.train.trajectories import multi_turn_samples
from tests.waiting import wait_until

pytestmark = pytest.mark.model
TEMPERATURE = 0.8


def settings_of(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "learner": "prime_rl",
        "steps": 3,
        "optimizer": OptimizerSettings(lr=1e-3, max_grad_norm=0.5),
        "prime_rl": PrimeRLSettings(seq_len=96, timeout_s=60),
    }
    return TrainSettings(**(values | changes))


class Setup:
    def __init__(self, folder: Path, settings: TrainSettings) -> None:
        self.model = tiny_model()
        self.start = folder / "model"
        self.model.save_pretrained(self.start)
        self.settings = settings
        self.objective = policy_objective(settings.loss, TEMPERATURE, settings.algorithm)
        self.out = folder / "prime_rl" / "output"
        self.config = trainer_config(settings, self.objective, model=self.start, output_dir=self.out)

    def learner(self) -> PrimeRLLearner:
        spec = LearnerSpec(
            model=self.start,
            dtype="float32",
            objective=self.objective,
            optimizer=self.settings.optimizer,
            passes=self.settings.batch,
            settings=self.settings,
        )
        return PrimeRLLearner(spec, self.settings.prime_rl, output_dir=self.out)

    def batch(self, seed: int) -> list[Sample]:
        return noisy(with_logprobs(multi_turn_samples(9, group=3, seed=seed), tiny_model(), TEMPERATURE), 0.2)


@pytest.mark.parametrize(("algorithm", "ranks"), [(GrpoSettings(), 1), (CispoSettings(), 2)])
def test_three_steps_through_prime_rl_equal_those_in_process(
    tmp_path: Path, algorithm: Any, ranks: int
) -> None:
    prime_rl = PrimeRLSettings(seq_len=96, data_ranks=ranks, timeout_s=60)
    setup = Setup(tmp_path, settings_of(algorithm=algorithm, prime_rl=prime_rl))
    own = policy_trainer(
        tiny_model(),
        settings_of(algorithm=algorithm, learner="in_process", prime_rl=PrimeRLSettings()),
        temperature=TEMPERATURE,
    )
    learner = setup.learner()
    trainer = rl_trainer(learner, setup.objective, setup.settings)
    with StandIn(setup.model, setup.config, ranks=ranks).running():
        for step in range(3):
            expected = own.step(setup.batch(step))
            metrics = trainer.step(setup.batch(step))
            assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)
            assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
            assert metrics["trained_tokens"] == expected["trained_tokens"]
            assert metrics["entropy"] == 1.5
            assert "ratio_mean_deviation" not in metrics
        learner.export(tmp_path / "exported")
    reached = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    pairs = zip(model_of(own).parameters(), reached.parameters(), strict=True)
    apart = torch.cat([(mine - theirs).detach().abs().flatten() for mine, theirs in pairs])
    # Adam moves a weight whose gradient is hardly more than rounding by up to the learning rate
    assert float((apart > 2e-6).float().mean()) < 1e-3
    assert float(apart.max()) < 6e-3


def test_run_killed_after_a_step_goes_on_with_the_same_batch(tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings_of())
    stand_in = StandIn(setup.model, setup.config)
    with stand_in.running():
        first = setup.learner()
        trainer = rl_trainer(first, setup.objective, setup.settings)
        trainer.step(setup.batch(0))
        first.save(tmp_path / "state")()
        before = trainer.state_dict()
        trainer.step(setup.batch(1))  # not committed: the run is killed here
        again = setup.learner()
        again.load(tmp_path / "state")
        resumed = rl_trainer(again, setup.objective, setup.settings)
        resumed.load_state_dict(before)
        resumed.step(setup.batch(1))
        resumed.step(setup.batch(2))
    assert len(stand_in.losses) == 3


def test_another_batch_for_a_step_that_was_sent_is_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings_of())
    with StandIn(setup.model, setup.config).running():
        rl_trainer(setup.learner(), setup.objective, setup.settings).step(setup.batch(0))
        fresh = rl_trainer(setup.learner(), setup.objective, setup.settings)
        with pytest.raises(TrainError, match=r"holds other micro-batches than step 0 .* resume\.step = 0"):
            fresh.step(setup.batch(1))


def test_trainer_with_another_learning_rate_is_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings_of())
    setup.config["optim"]["lr"] = 5e-4
    trainer = rl_trainer(setup.learner(), setup.objective, setup.settings)
    with (
        StandIn(setup.model, setup.config).running(),
        pytest.raises(TrainError, match=r"learning rate of 0\.0005, and train\.optimizer gives 0\.001"),
    ):
        trainer.step(setup.batch(0))


def test_missing_trainer_is_named_after_the_time_limit(tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings_of(prime_rl=PrimeRLSettings(seq_len=96, timeout_s=1e-3)))
    with pytest.raises(TrainError, match=r"no weights of step 0 .* start prime-rl's trainer"):
        setup.learner().export(tmp_path / "exported")


def test_cancelled_step_ends_while_it_waits(tmp_path: Path) -> None:
    setup = Setup(tmp_path, settings_of())
    trainer = rl_trainer(setup.learner(), setup.objective, setup.settings)
    sent = setup.out / "rollouts" / "step_1" / "rank_0.bin"

    def cancel_once_sent() -> None:
        wait_until(sent.is_file)
        trainer.cancel()

    with ThreadPoolExecutor() as threads:
        cancelling = threads.submit(cancel_once_sent)
        with pytest.raises(StepCancelled):
            trainer.step(setup.batch(0))
        cancelling.result()


def test_state_of_another_learner_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(CheckpointError, match="was written by another learner"):
        Setup(tmp_path, settings_of()).learner().load(tmp_path / "state")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": BatchSettings(mini_batches=2)},
            "train.batch.epochs to 1",
        ),
        ({"lora": LoraSettings()}, "remove train.lora"),
        ({"loss": LossSettings(kl_coef=0.1)}, "set train.loss.kl_coef = 0"),
        ({"loss": LossSettings(old_logprobs="recomputed")}, 'set train.loss.old_logprobs = "engine"'),
        ({"algorithm": GspoSettings()}, "choose another one"),
        ({"optimizer": OptimizerSettings(name="muon")}, 'set train.optimizer.name = "adamw"'),
        ({"optimizer": OptimizerSettings(warmup_steps=3)}, 'set train.optimizer.schedule = "constant"'),
        ({"optimizer": OptimizerSettings(weight_decay=0.1)}, "set train.optimizer.weight_decay = 0"),
        ({"optimizer": OptimizerSettings(eps=1e-6)}, "remove the setting"),
    ],
)
def test_setting_that_prime_rl_cannot_honour_is_refused(changes: dict[str, Any], message: str) -> None:
    train = settings_of(**changes)
    with pytest.raises(ValidationError, match=r'train\.learner = "prime_rl"') as caught:
        RunSettings(run_dir=Path("run"), train=train)
    assert message in str(caught.value)


def test_trainer_configuration_reads_back_from_toml(tmp_path: Path) -> None:
    config = Setup(tmp_path, settings_of()).config
    assert tomllib.loads(to_toml(config)) == config
    assert config["loss"]["kwargs"] == {"surrogate": "clipped", "low": 0.8, "cap": 10.0, "high": 1.2}
    assert np.isclose(config["optim"]["lr"], 1e-3)
