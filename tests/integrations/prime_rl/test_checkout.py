"""A real checkout of prime-rl reads what Hone writes; its loss and gradients are Hone's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.integrations.prime_rl.configuration import trainer_config
from hone.integrations.prime_rl.wire import encode, micro_batch_grid
from hone.train.loss import policy_objective
from hone.train.settings import TrainSettings
from tests.integrations.prime_rl.test_wire import rows_of
from tests.train.trajectories import multi_turn_samples

CHECKOUT, PYTHON = (os.environ.get(f"HONE_TEST_PRIME_RL_{name}") for name in ("CHECKOUT", "PYTHON"))
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (CHECKOUT and PYTHON),
        reason="set HONE_TEST_PRIME_RL_CHECKOUT to a checkout of prime-rl and HONE_TEST_PRIME_RL_PYTHON to a "
        "Python with msgspec, pyzmq, loguru, beartype, jaxtyping, prime-pydantic-config and torch",
    ),
]
SHIFT = 0.15  # nats: ratios of 1.16, inside of the clip range


def test_loss_and_gradients_in_prime_rl_equal_those_of_hone(tmp_path: Path) -> None:
    settings = TrainSettings(learner="prime_rl", steps=5)
    objective = policy_objective(settings.loss, 1.0, settings.algorithm)
    rows = rows_of(multi_turn_samples(9))
    (rank,) = micro_batch_grid(rows, seq_len=96, data_ranks=1, temperature=1.0)
    folder = tmp_path / "rollouts" / "step_1"
    folder.mkdir(parents=True)
    (folder / "rank_0.bin").write_bytes(encode(rank))
    config = trainer_config(settings, objective, model=tmp_path / "model", output_dir=tmp_path)
    (tmp_path / "expected.json").write_text(json.dumps({"config": config, "shift": SHIFT}))

    script = Path(__file__).with_name("check_checkout.py")
    root = Path(__file__).parents[3]
    assert PYTHON is not None
    ran = subprocess.run(
        [PYTHON, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    theirs = json.loads(ran.stdout.splitlines()[-1])

    loss, gradients = 0.0, []
    for row in rows:
        at = row.trained
        old = torch.from_numpy(row.sample.logprobs - 0.5)[at]
        new = (old + SHIFT).requires_grad_()
        rule = objective.loss_rule
        each = rule.surrogate.loss(new, old, torch.from_numpy(row.sample.advantage)[at], rule.bounds)
        value = (each * torch.from_numpy(row.scale)[at]).sum()
        value.backward()
        assert new.grad is not None
        loss += value.item()
        gradients += new.grad.tolist()
    assert theirs["loss"] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(theirs["gradients"], sorted(gradients), rtol=1e-4, atol=1e-8)
    assert theirs["max_steps"] == 5
