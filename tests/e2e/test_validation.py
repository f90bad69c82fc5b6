"""A training that validates itself, in real sandboxes, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.config import ConfigError, resolve
from hone.launch.tasks import require_validation_tasks
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.ledger import Ledger
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.train.metrics import read_metrics
from tests.e2e.small_run import RECIPE, hone


def arguments(tmp_path: Path, steps: int) -> list[str]:
    values = {
        "run_dir": tmp_path / "run",
        "model.path": tmp_path / "model",
        "tasks.train": 4,
        "tasks.test": 0,
        "tasks.unseen": 0,
        "tasks.validation": 2,
        "train.optimizer.schedule": "constant",
        "train.validate.every": 2,
        "train.steps": steps,
        "train.max_idle_steps": 9,
        "groups_per_step": 1,
        "rollout.group_size": 2,
        "agent.turn_limit": 2,
        "sampling.max_tokens": 16,
    }
    return [str(RECIPE), *(word for key, value in values.items() for word in ("--set", f"{key}={value}"))]


@pytest.mark.e2e
@pytest.mark.sandbox
@pytest.mark.full
def test_training_validates_without_training_on_the_rollouts(tmp_path: Path) -> None:
    make_tiny(["Fix the bug in `total_price`."] * 3, tmp_path / "model", TinyModelSettings())
    run = tmp_path / "run"
    done = hone("train", *arguments(tmp_path, steps=1), check=False)
    assert (done.returncode, "nothing was learnt" in done.stderr) == (1, True), (
        "so small a model solves nothing"
    )
    assert [r["step"] for r in read_metrics(run, "validation")] == [0, 1]
    hone("train", *arguments(tmp_path, steps=3), check=False)
    records = read_metrics(run, "validation")
    assert [r["step"] for r in records] == [0, 1, 2, 3]
    assert all(r["n"] == 2 and r["low"] <= r["resolve_rate"] <= r["high"] for r in records)
    with Ledger.read(run) as ledger:
        assert {entry.task_id.split("-")[0] for entry in ledger.entries()} == {"train"}
        assert ledger.balance().dispatched == 6
    summary = json.loads((run / "validation" / "step-000002" / "summary.json").read_text())
    assert summary["tasks"] == 2
    assert (run / "checkpoints" / "best" / "config.json").is_file()
    assert "Validation (95 % interval)" in hone("show", str(run)).stdout


def test_validation_without_tasks_is_refused() -> None:
    settings = resolve(None, ["train.validate.every=2"])
    require_validation_tasks(
        settings, generate(TasksSettings(train=0, test=0, unseen=0, validation=1)).validation
    )
    with pytest.raises(
        ConfigError, match=r"every is 2, but curriculum has no validation task: set tasks.val"
    ):
        require_validation_tasks(settings, ())
    file = resolve(None, ["train.validate.every=2", "tasks.source=mine.jsonl"])
    with pytest.raises(
        ConfigError, match=r"mine.jsonl has no validation task: set tasks.validation_source, give"
    ):
        require_validation_tasks(file, ())
    require_validation_tasks(resolve(None, []), ())
