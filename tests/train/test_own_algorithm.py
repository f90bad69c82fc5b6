"""The documented algorithm and reward of a user's own, run as they are written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hone.config import RunSettings, resolve
from hone.train.algorithms import compute_advantages
from hone.train.errors import TrainError
from hone.train.loop import to_samples
from hone.train.loss import policy_objective
from hone.train.settings import TrainSettings
from hone.types import Trajectory
from tests.train.trajectories import trajectory, with_turns

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "23-algorithms.md"


def block(kind: str, first: str) -> str:
    """The block of this kind that begins with `first`."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [each for each in blocks if each.startswith(first)]
    return found


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSettings:
    (tmp_path / "my_training.py").write_text(block("python", '"""my_training.py'))
    recipe = block("toml", "extends").replace("recipes/", f"{ROOT}/recipes/")
    (tmp_path / "my.toml").write_text(recipe)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    return resolve(tmp_path / "my.toml")


def batch() -> list[Trajectory]:
    made = [trajectory(f"r{i}", reward=reward) for i, reward in enumerate((1.0, -1.0, -1.0))]
    return [with_turns(each, [1] * turns) for each, turns in zip(made, (1, 0, 0), strict=True)]


def test_documented_algorithm_has_at_most_30_lines() -> None:
    assert len(block("python", '"""my_training.py').splitlines()) <= 30


def test_documented_algorithm_and_reward_are_used(documented: RunSettings) -> None:
    assert (
        documented.train.algorithm.named == "my_training:AGAINST_MEDIAN on the my_training:few_turns reward"
    )
    credit, samples = to_samples(batch(), documented.train, lambda rollout: False)
    assert credit.advantages == pytest.approx({"r0": 1.99, "r1": 0.0, "r2": 0.0})
    assert len(samples) == 3
    rule = policy_objective(documented.train.loss, 1.0, documented.train.algorithm).rule
    assert (rule.bounds.high, rule.normalisation) == (1.28, "trajectory")


def algorithm(entry_point: str, **options: str) -> TrainSettings:
    return TrainSettings.model_validate(
        {"algorithm": {"name": "custom", "entry_point": entry_point, **options}}
    )


@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("no_such_module:A", "no_such_module:A cannot be loaded .*put its folder on PYTHONPATH"),
        ("math:no_such", "cannot be loaded"),
        ("math:pi", "is a float: name a hone.train.algorithms.Algorithm"),
    ],
)
def test_algorithm_that_cannot_be_loaded_is_refused(entry_point: str, said: str) -> None:
    with pytest.raises(TrainError, match=said):
        compute_advantages(batch(), algorithm(entry_point).algorithm)


def test_malformed_names_are_refused() -> None:
    with pytest.raises(ValueError, match="set MODULE:ATTRIBUTE"):
        algorithm("no colon")
    with pytest.raises(ValueError, match="MODULE:FUNCTION of a reward of yours"):
        algorithm("a:b", reward="best")


@pytest.mark.parametrize(
    ("module", "result"),
    [("short_training", "group.rewards[:1]"), ("nan_training", "group.rewards * float('nan')")],
)
def test_incomplete_advantages_are_refused(
    module: str, result: str, documented: RunSettings, tmp_path: Path
) -> None:
    wrong = block("python", '"""my_training.py').replace("group.rewards - np.median(group.rewards)", result)
    (tmp_path / f"{module}.py").write_text(wrong)
    with pytest.raises(TrainError, match="must return one finite number per rollout"):
        compute_advantages(batch(), algorithm(f"{module}:AGAINST_MEDIAN").algorithm)


def test_options_that_an_own_algorithm_does_not_use_are_refused(
    documented: RunSettings, tmp_path: Path
) -> None:
    text = block("python", '"""my_training.py').replace("clip_high=0.28", "clip_high=None")
    (tmp_path / "unclipped_training.py").write_text(text)
    settings = algorithm("unclipped_training:AGAINST_MEDIAN")
    assert policy_objective(settings.loss, 1.0, settings.algorithm).rule.bounds.high == float("inf")
    with pytest.raises(TrainError, match="clip_high has no effect"):
        policy_objective(settings.loss.model_copy(update={"clip_high": 0.3}), 1.0, settings.algorithm)


def test_reward_of_yours_is_for_every_algorithm(documented: RunSettings) -> None:
    settings = TrainSettings.model_validate(
        {"algorithm": {"name": "rloo", "reward": "my_training:few_turns"}}
    ).algorithm
    plain = TrainSettings.model_validate({"algorithm": {"name": "rloo"}}).algorithm
    rewarded = [replace(t, reward=(t.reward or 0) - 0.01 * len(t.turns)) for t in batch()]
    assert compute_advantages(batch(), settings).advantages == compute_advantages(rewarded, plain).advantages
