"""bfloat16 on ranks: small updates arrive in the float32 master weights, and follow those of float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner
from hone.train.loss import policy_objective
from hone.train.ranks.learner import RanksLearner
from hone.train.settings import LossSettings, OptimizerSettings, PassSettings, TrainSettings
from hone.train.trainer import rl_trainer
from tests.train.examples import tiny_model, with_logprobs
from tests.train.ranks.cases import make_spec
from tests.train.trajectories import multi_turn_samples

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.full]

STEPS = 50
OBJECTIVE = policy_objective(LossSettings(), temperature=1.0)
SETTINGS = TrainSettings(steps=STEPS, optimizer=OptimizerSettings(lr=1e-6))  # the published learning rate


def start_model() -> torch.nn.Module:
    """Both precisions start from the same numbers."""
    return tiny_model(dtype=torch.bfloat16).float()


def in_process() -> InProcessLearner:
    return InProcessLearner(
        start_model(), objective=OBJECTIVE, optimizer=SETTINGS.optimizer, passes=PassSettings()
    )


def train(learner: Learner) -> None:
    """Train on a new batch each step."""
    trainer = rl_trainer(learner, OBJECTIVE, SETTINGS)
    samples = with_logprobs(multi_turn_samples(4 * STEPS), tiny_model())
    for step in range(STEPS):
        trainer.step(samples[4 * step : 4 * step + 4])


def updates(learner: InProcessLearner) -> torch.Tensor:
    """Return the change of all master weights since the start, [parameters]."""
    after = torch.cat([p.detach().flatten() for p in learner.masters])
    return after - torch.cat([p.detach().flatten() for p in in_process().masters])


def test_bfloat16_updates_on_ranks_follow_those_of_float32(tmp_path: Path) -> None:
    exact = in_process()
    train(exact)
    tiny_model(dtype=torch.bfloat16).save_pretrained(tmp_path / "tiny")
    spec = make_spec(
        tmp_path, architecture="tiny", dtype="bfloat16", objective=OBJECTIVE, optimizer=SETTINGS.optimizer
    )
    ranks = RanksLearner(spec, logs=tmp_path / "logs")
    try:
        train(ranks)
        ranks.save(tmp_path / "state")()
    finally:
        ranks.close()
    rounded = in_process()
    rounded.load(tmp_path / "state")
    cosine = torch.nn.functional.cosine_similarity(updates(exact), updates(rounded), dim=0)
    assert float(cosine) >= 0.99
    assert float((updates(rounded) != 0).float().mean()) >= 0.99
