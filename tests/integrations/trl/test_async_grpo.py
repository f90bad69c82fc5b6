"""Five steps of TRL's asynchronous GRPO trainer on Hone's rollouts, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.config import RunSettings
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.store import Store
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.types import Trajectory

pytestmark = [pytest.mark.full, pytest.mark.sandbox, pytest.mark.model]
GROUP, GROUPS = 4, 2


def odd_share(rollout: Trajectory) -> float:
    """A reward that a random model varies in: the share of odd tokens that it sampled."""
    odd = sum(int((node.tokens % 2).sum()) for node in rollout.tree.nodes if node.sampled)
    return odd / max(1, rollout.tree.sampled_tokens)


def recipe(folder: Path) -> RunSettings:
    tasks = TasksSettings(train=6, test=1, unseen=0)
    texts = [task.problem for task in generate(tasks).train] * 3
    shape = TinyModelSettings(layers=1, hidden_size=32, intermediate_size=64)
    make_tiny(texts, folder / "model", shape)
    return RunSettings.model_validate(
        {
            "run_dir": folder / "run",
            "model": {"path": folder / "model"},
            "tasks": tasks,
            "agent": {"kind": "bash", "prompts": "tiny", "turn_limit": 2},
            "engine": {"kind": "local", "context_tokens": 1024, "threads": 1},
            "sampling": {"max_tokens": 12},
            "rollout": {"group_size": GROUP, "max_staleness": 1, "concurrent_episodes": 4},
            "groups_per_step": GROUPS,
            "train": {"algorithm": {"name": "grpo", "reward": f"{__name__}:odd_share"}},
        }
    )


def test_five_steps_train_what_was_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl.experimental.async_grpo")
    from datasets import Dataset
    from transformers import AutoTokenizer

    from hone.integrations.trl import HoneRollouts
    from tests.integrations.trl.cpu_attention import patch

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    patch(monkeypatch)
    settings = recipe(tmp_path)
    rollouts = HoneRollouts(settings)
    assert settings.model is not None
    arguments: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "dtype": "float32",
        "max_steps": 5,
        "per_device_train_batch_size": GROUP * GROUPS,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "num_generations": GROUP,
        "token_budget": 0,
        "max_staleness": 1,
        "weight_sync_steps": 1,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "gradient_checkpointing": False,
    }
    trainer = trl.AsyncGRPOTrainer(
        model=str(settings.model.path),
        args=trl.AsyncGRPOConfig(str(tmp_path / "trl"), **arguments),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "-"}]] * 8}),
        processing_class=AutoTokenizer.from_pretrained(settings.model.path),
        rollout_worker=rollouts,
        weight_transfer=rollouts,
    )
    trainer.train()

    steps = [record for record in trainer.state.log_history if "ratio" in record]
    assert len(steps) == 5
    assert steps[0]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert all(record["sample/staleness_max"] <= 1 for record in steps)
    assert not any("sample/dropped_stale_total" in record for record in steps)
    assert any(record["grad_norm"] > 0 for record in steps)
    names = list(Store(settings.run_dir / "rollouts").names())
    assert len(names) >= 5 * GROUP * GROUPS
