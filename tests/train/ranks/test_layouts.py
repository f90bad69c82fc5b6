"""Every layout of the ranks trains like one process, and what one writes another reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.train.in_process import InProcessLearner
from hone.train.ranks.learner import RanksLearner
from hone.train.settings import LearnerSettings, MemorySettings, OptimizerSettings, ParallelSettings
from hone.utils.processes import start_time
from tests.train.ranks.cases import make_model, make_rows, make_spec, train_steps, worst_difference
from tests.waiting import wait_until

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.full]

ARCHITECTURES = ("qwen3", "llama", "qwen3_moe")
CHECKPOINTED = {"memory": MemorySettings(activation_checkpointing=True)}
LAYOUTS: list[tuple[int, ParallelSettings, dict[str, Any]]] = [
    (2, ParallelSettings(), {}),
    (4, ParallelSettings(), {}),
    (2, ParallelSettings(tensor=2), {}),
    (2, ParallelSettings(sequence=2), {}),
    (4, ParallelSettings(replicate=2), {}),
    (4, ParallelSettings(tensor=2), {}),
    (4, ParallelSettings(sequence=2), {}),
    (2, ParallelSettings(), CHECKPOINTED),
    (2, ParallelSettings(), {"tree": "mask"}),
    (2, ParallelSettings(), {"tree": "off"}),
]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("ranks", "parallel", "spec"), LAYOUTS)
def test_layout_trains_like_one_process(
    architecture: str, ranks: int, parallel: ParallelSettings, spec: dict[str, Any], tmp_path: Path
) -> None:
    # far above the rounding errors, whose direction AdamW would amplify
    optimizer = OptimizerSettings(lr=1e-3, max_grad_norm=1.0, eps=1e-3)
    made = make_spec(
        tmp_path, architecture=architecture, ranks=ranks, parallel=parallel, optimizer=optimizer, **spec
    )
    learner = RanksLearner(made, logs=tmp_path / "logs")
    try:
        reports, norms = train_steps(learner)
        learner.export(tmp_path / "exported")
    finally:
        learner.close()
    model = make_model(architecture)
    alone = InProcessLearner(model, objective=made.objective, optimizer=optimizer, passes=made.passes)
    expected, expected_norms = train_steps(alone)
    assert worst_difference(reports, expected) <= 1e-5
    assert np.allclose(norms, expected_norms, rtol=1e-5, atol=0)
    exported = weights_of(tmp_path / "exported")
    for name, parameter in model.named_parameters():
        assert float((exported[name] - parameter).abs().max()) <= 1e-5 * float(parameter.abs().max()), name


@pytest.mark.parametrize(
    ("parallel", "spec"),
    [
        (ParallelSettings(), CHECKPOINTED),
        (ParallelSettings(sequence=2), {}),
        (ParallelSettings(tensor=2), {}),
    ],
)
def test_ranks_replay_experts_like_one_process(
    parallel: ParallelSettings, spec: dict[str, Any], tmp_path: Path
) -> None:
    optimizer = OptimizerSettings(lr=1e-3, max_grad_norm=1.0, eps=1e-3)
    spec = {"tree": "off", **spec}  # the experts differ between rows, even where these begin with one token
    made = make_spec(tmp_path, architecture="qwen3_moe", parallel=parallel, optimizer=optimizer, **spec)
    learner = RanksLearner(made, logs=tmp_path / "logs")
    try:
        reports, norms = train_steps(learner, replay=True)
    finally:
        learner.close()
    alone = InProcessLearner(
        make_model("qwen3_moe"),
        objective=made.objective,
        optimizer=optimizer,
        passes=made.passes,
        settings=LearnerSettings(tree="off"),
    )
    expected, expected_norms = train_steps(alone, replay=True)
    assert worst_difference(reports, expected) <= 1e-5
    assert np.allclose(norms, expected_norms, rtol=1e-5, atol=0)
    assert [report.replayed for report in reports] == [report.replayed for report in expected]
    assert all(report.replayed for report in reports)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_saved_on_two_ranks_goes_on_with_one_and_four(name: str, tmp_path: Path) -> None:
    optimizer = OptimizerSettings.model_validate({"name": name, "lr": 1e-3, "eps": 1e-3})
    spec = make_spec(tmp_path, optimizer=optimizer)
    two = RanksLearner(spec, logs=tmp_path / "two")
    train_steps(two, 1)
    two.save(tmp_path / "state")()
    expected = train_steps(two, 1)
    two.close()
    alone = InProcessLearner(
        make_model("qwen3"), objective=spec.objective, optimizer=optimizer, passes=spec.passes
    )
    alone.load(tmp_path / "state")
    four = RanksLearner(make_spec(tmp_path, ranks=4, optimizer=optimizer), logs=tmp_path / "four")
    four.load(tmp_path / "state")
    for learner in (alone, four):
        reports, norms = train_steps(learner, 1)
        rows = make_rows(3, seed=9)
        assert worst_difference(reports, expected[0]) <= 1e-5
        assert np.allclose(norms, expected[1], rtol=1e-5, atol=0)
        assert len(learner.logprobs(rows)) == 3
        learner.close()


def test_ranks_end_when_the_run_is_killed(tmp_path: Path) -> None:
    """Its ranks are connected and idle."""
    command = [sys.executable, "-c", _RUN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert len(pids) == 2
        run.kill()
    wait_until(lambda: all(start_time(pid) is None for pid in pids), "a rank is left")


_RUN = """
import signal, sys
from pathlib import Path
from hone.train.ranks.learner import RanksLearner
from tests.train.ranks.cases import make_spec
folder = Path(sys.argv[1])
learner = RanksLearner(make_spec(folder), logs=folder / "logs")
print(*learner.pids, flush=True)
signal.pause()
"""
