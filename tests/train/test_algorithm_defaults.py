"""What each algorithm does by default: surrogate, bounds, normalisation; as its paper says."""

from __future__ import annotations

from typing import Any

import pytest

from hone.train.algorithms.surrogates import CLIPPED, TRUNCATED
from hone.train.loss import policy_objective
from hone.train.settings import TrainSettings

PPO = (CLIPPED, 0.8, 1.2, "token", None, False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", PPO),
        ("rloo", PPO),
        ("reinforce_pp", PPO),
        ("opo", PPO),
        ("step_wise", PPO),
        ("ppo", PPO),
        ("dr_grpo", (CLIPPED, 0.8, 1.2, "constant", 3000, False)),
        ("dapo", (CLIPPED, 0.8, 1.28, "token", None, False)),
        ("gspo", (CLIPPED, 1 - 3e-4, 1 + 4e-4, "trajectory", None, True)),
        ("cispo", (TRUNCATED, 0.0, 5.0, "token", None, False)),
    ],
)
def test_defaults_are_those_of_the_paper(name: str, expected: tuple[Any, ...]) -> None:
    settings = TrainSettings.model_validate({"algorithm": {"name": name}})
    rule = policy_objective(settings.loss, 1.0, settings.algorithm).rule
    low, high, cap = rule.bounds
    found = (rule.surrogate, low, high, rule.normalisation, rule.constant_tokens, rule.sequence_ratio)
    assert found == expected
    assert (cap, rule.critic is not None) == (10.0, name == "ppo")


def test_settings_of_the_loss_override_the_defaults() -> None:
    loss = {"clip_low": 0.1, "clip_high": 0.5, "dual_clip": 3, "normalisation": "token"}
    settings = TrainSettings.model_validate({"algorithm": {"name": "gspo"}, "loss": loss})
    rule = policy_objective(settings.loss, 1.0, settings.algorithm).rule
    assert (rule.bounds, rule.normalisation) == ((0.9, 1.5, 3.0), "token")
    other = {"normalisation": "constant", "constant_tokens": 24}
    settings = TrainSettings.model_validate({"algorithm": {"name": "dr_grpo"}, "loss": other})
    assert policy_objective(settings.loss, 1.0, settings.algorithm).rule.constant_tokens == 24
