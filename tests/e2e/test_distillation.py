"""A training with a teacher, in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.train.metrics import read_metrics
from tests.e2e.small_run import RECIPE, hone, sets

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1500)]


def test_policy_leaves_the_teacher_that_it_began_as(finished: Path, tmp_path: Path) -> None:
    """The divergence from the own start is 0 up to rounding; the outcome reward then moves the policy."""
    taught = {
        "train__distill__enabled": "true",
        "train__distill__model__path": finished / "start",
        "train__distill__outcome_reward": "true",
        "train__steps": 2,
        "groups_per_step": 2,
    }
    run_dir = tmp_path / "run"
    hone("train", str(RECIPE), *sets(run_dir, model__path=finished / "start", **taught))
    first, second = read_metrics(run_dir)
    assert first["distill/tokens"] > 0
    assert abs(first["distill/kl"]) < 1e-4
    assert abs(second["distill/kl"]) > abs(first["distill/kl"])
