"""PPO: a critic learns beside the policy, in any passes, and is saved with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.train.algorithms.ppo import PpoSettings
from hone.train.errors import TrainError
from hone.train.loss import policy_objective
from hone.train.ranks.learner import RanksLearner
from hone.train.settings import BatchSettings, LossSettings, OptimizerSettings
from hone.train.trainer import Trainer
from hone.types import Sample
from tests.train.examples import (
    learner_of,
    model_of,
    step_with_gradients,
    tiny_model,
    trainer_of,
    with_logprobs,
)
from tests.train.ranks.cases import make_spec
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model

PPO = PpoSettings(value_coef=0.5, gae_lambda=1.0)


def rewarded(count: int = 8) -> list[Sample]:
    """Rollouts whose reward a critic can tell from the first token of the prompt."""
    samples = multi_turn_samples(count, group=4)
    return [
        replace(
            s,
            tokens=np.concatenate([[i // 4], s.tokens[1:]]).astype(np.int32),
            advantage=s.weight * (1.0 if i // 4 else -1.0),
        )
        for i, s in enumerate(samples)
    ]


def trainer(lr: float = 3e-3, **batch: int) -> Trainer:
    optimizer = OptimizerSettings(lr=lr, max_grad_norm=1e9)
    return trainer_of(tiny_model(), algorithm=PPO, optimizer=optimizer, batch=BatchSettings(**batch))


def critic_of(made: Trainer) -> dict[str, torch.Tensor]:
    parameters = learner_of(made).masters.parameters
    return {name: p.detach().clone() for name, p in parameters.items() if name.startswith("critic.")}


def test_value_loss_falls_and_the_critic_explains_the_rewards() -> None:
    samples = with_logprobs(rewarded(), tiny_model())
    made = trainer(lr=1e-2)
    records = [made.step(with_logprobs(samples, model_of(made))) for _ in range(25)]
    assert records[0]["value/loss"] == pytest.approx(0.5)  # all values are 0, and all targets 1 or -1
    assert records[0]["value/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert records[-1]["value/loss"] < 0.2
    assert records[-1]["value/explained_variance"] > 0.6


@pytest.mark.parametrize(("mini_batches", "epochs"), [(1, 1), (2, 2)])
def test_gradients_do_not_depend_on_passes_and_workers(mini_batches: int, epochs: int) -> None:
    samples = with_logprobs(rewarded(), tiny_model())
    (first, gradients), *others = [
        step_with_gradients(
            trainer(lr=1e-4, micro_batch_tokens=b, workers=w, mini_batches=mini_batches, epochs=epochs),
            samples,
        )
        for b, w in ((1, 1), (100_000, 1), (60, 2))
    ]
    assert len(gradients) == mini_batches * epochs
    for metrics, other in others:
        assert metrics["loss"] == pytest.approx(first["loss"], abs=1e-5)
        assert metrics["value/loss"] == pytest.approx(first["value/loss"], abs=1e-5)
        for one, two in zip(gradients, other, strict=True):
            for mine, theirs in zip(one, two, strict=True):
                assert float((mine - theirs).abs().max()) <= 3e-5 * max(1.0, float(mine.abs().max()))


def test_loss_is_the_policys_plus_the_clipped_error_of_the_values() -> None:
    samples = with_logprobs(rewarded(), tiny_model())
    metrics = trainer().step(samples)
    assert metrics["loss"] == pytest.approx(0.5 * metrics["value/loss"], abs=1e-5)  # advantages have mean 0


def test_critic_is_saved_with_the_training_and_left_out_of_the_export(tmp_path: Path) -> None:
    samples = with_logprobs(rewarded(), tiny_model())
    made = trainer()
    made.step(samples)
    made.learner.save(tmp_path / "state")()
    made.learner.export(tmp_path / "model")
    state, saved = made.state_dict(), critic_of(made)
    assert saved["critic.weight"].any()
    made.step(samples)
    resumed = trainer()
    resumed.learner.load(tmp_path / "state")
    resumed.load_state_dict(state)
    assert all(torch.equal(critic_of(resumed)[name], value) for name, value in saved.items())
    resumed.step(samples)
    for one, two in zip(learner_of(made).masters, learner_of(resumed).masters, strict=True):
        assert torch.equal(one, two)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in tiny_model().parameters())


def test_ranks_refuse_an_objective_with_a_critic(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, objective=policy_objective(LossSettings(), 1.0, PPO))
    with pytest.raises(TrainError, match="has a critic"):
        RanksLearner(spec, logs=tmp_path / "logs")
