"""Rewards for single turns: a recipe that would leave one of their settings without effect is refused."""

from __future__ import annotations

import pytest

from hone.config import ConfigError, dump, resolve

JUDGE = ["judge.enabled=true"]


@pytest.mark.parametrize(
    "sets",
    [
        [],
        [*JUDGE, "train.algorithm.name=step_wise"],
        [*JUDGE, "train.algorithm.reward=final"],
        [*JUDGE, "train.algorithm.name=rloo", "train.algorithm.reward=final"],
        ["progress.enabled=true", "train.algorithm.name=step_wise"],
        [*JUDGE, "judge.coefficient=0"],
        [*JUDGE, "judge.coefficient=0", "progress.enabled=true", "train.algorithm.name=step_wise"],
        [*JUDGE, "judge.engine.context_tokens=9000", "train.algorithm.name=step_wise"],
    ],
)
def test_recipes_with_turn_rewards_round_trip(sets: list[str], tmp_path) -> None:
    settings = resolve(None, sets)
    path = tmp_path / "config.toml"
    path.write_text(dump(settings))
    assert resolve(path) == settings


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["judge.coefficient=0.5"], "judge.coefficient has no effect while judge.enabled is false"),
        (["judge.engine.context_tokens=9"], "judge.engine has no effect while judge.enabled is false"),
        (["judge.model.path=x"], "judge.model has no effect while judge.enabled is false"),
        (["progress.gamma=0.5"], "progress.gamma has no effect while progress.enabled is false"),
        (["train.algorithm.name=step_wise"], "needs rewards for single turns"),
        (["train.algorithm.reward=final"], "needs rewards for single turns"),
        ([*JUDGE, "judge.coefficient=0", "train.algorithm.name=step_wise"], "with a coefficient above 0"),
        (JUDGE, "have no effect with train.algorithm (grpo on the outcome reward)"),
        (["progress.enabled=true"], "have no effect"),
        ([*JUDGE, "judge.max_tokens=16384"], "leaves no room for a prompt"),
        (
            [
                *JUDGE,
                'judge.engine={kind="openai", urls=["http://x/v1"], model_name="m"}',
                "judge.model.path=x",
            ],
            "judge.model has no effect",
        ),
        (
            [
                *JUDGE,
                "train.algorithm.name=step_wise",
                'engine={kind="vllm", urls=["http://a:1", "http://b:1"]}',
                'judge.engine={kind="vllm", urls=["http://b:1"]}',
            ],
            "http://b:1 serves the policy, whose weights change",
        ),
    ],
)
def test_settings_without_effect_are_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(None, sets)
    assert said in str(refusal.value)
