"""Every algorithm and correction in the loop itself, on a toy task that each of them learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.train.loop import train
from hone.train.metrics import read_metrics
from hone.train.settings import TrainSettings
from tests.train.examples import learner_of
from tests.train.toy_run import Crash, ToyRun, settings_of

pytestmark = [pytest.mark.model, pytest.mark.full]

CHOICES: list[dict[str, Any]] = [
    {"algorithm": {"name": name}}
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "dapo", "gspo", "cispo", "opo", "ppo")
]
CHOICES += [
    {"algorithm": {"name": "reinforce_pp", "group_baseline": True}},
    *(
        {"algorithm": {"name": "grpo"}, "corrections": {"kind": kind, "level": level}}
        for kind in ("truncate", "mask")
        for level in ("token", "sequence", "geometric")
    ),
]


def run_of(directory: Path, choice: dict[str, Any], steps: int = 14, **crash: Any) -> ToyRun:
    loss = {"old_logprobs": "recomputed"} if "corrections" in choice else {}
    base = settings_of(steps).model_dump(exclude_unset=True)
    run = ToyRun(directory, TrainSettings.model_validate({**base, "loss": loss, **choice}), **crash)
    try:
        asyncio.run(train(run.parts))
    finally:
        run.close()
    return run


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_choice_learns_the_toy_task(choice: dict[str, Any], tmp_path: Path) -> None:
    run_of(tmp_path, choice)
    rewards = [record["reward"] for record in read_metrics(tmp_path)]
    assert rewards[0] < 0.45
    assert float(np.mean(rewards[-2:])) > rewards[0] + 0.2


def test_crashed_run_with_a_critic_resumes_to_the_same_weights(tmp_path: Path) -> None:
    choice = {"algorithm": {"name": "ppo"}}
    whole = run_of(tmp_path / "whole", choice, steps=4)

    def crash(where: str, step: int) -> None:
        if (where, step) == ("trained", 2):
            raise Crash

    with pytest.raises(Crash):
        run_of(tmp_path / "broken", choice, steps=4, crash=crash)
    resumed = run_of(tmp_path / "broken", choice, steps=4)
    for one, two in zip(learner_of(whole.trainer).masters, learner_of(resumed.trainer).masters, strict=True):
        assert torch.equal(one, two)
