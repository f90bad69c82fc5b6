"""The trainer of a run computes the loss of the run's algorithm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hone.config import RunSettings
from hone.launch.policy import load_policy
from hone.launch.train import open_trainer
from hone.policy.tiny import make_tiny
from tests.policy.conftest import SETTINGS, TEXTS
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model


def step(name: str, folder: Path, run_dir: Path) -> dict[str, float]:
    settings = RunSettings.model_validate(
        {"run_dir": run_dir, "model": {"path": folder}, "train": {"algorithm": {"name": name}}}
    )
    samples = [replace(s, advantage=-s.weight) for s in multi_turn_samples(3)]
    with open_trainer(
        load_policy(settings), settings
    ) as trainer:  # every ratio is near 0: log p(engine) is 0
        return trainer.step(samples)


def test_trainer_of_a_run_has_its_algorithm(tmp_path: Path) -> None:
    folder = make_tiny(TEXTS, tmp_path / "model", SETTINGS)
    assert step("gspo", folder, tmp_path / "gspo")["loss"] == pytest.approx(1 - 3e-4)
    assert step("grpo", folder, tmp_path / "grpo")["loss"] == pytest.approx(1 - 0.2)
    assert step("ppo", folder, tmp_path / "ppo")["value/loss"] > 0
