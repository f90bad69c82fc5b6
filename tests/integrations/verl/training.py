"""Trainings of real verl on the CPU, with a real vLLM server and real sandboxes.

HONE_TEST_VERL_PYTHON is the Python of an environment with verl 0.9.1 and Hone's base install, and
HONE_TEST_VLLM_PYTHON one with vLLM, by default this one. HONE_TEST_VERL_MODEL is a model that solves some
tasks of the curriculum with the tiny prompts, such as the start model of the quickstart.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from hone.rollout.store import Store
from hone.types import Trajectory

PYTHON = os.environ.get("HONE_TEST_VERL_PYTHON", "")
MODEL = os.environ.get("HONE_TEST_VERL_MODEL", "")
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
REAL_VERL = [
    pytest.mark.full,
    pytest.mark.vllm,
    pytest.mark.sandbox,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not PYTHON, reason="HONE_TEST_VERL_PYTHON names no Python with verl"),
    pytest.mark.skipif(not MODEL, reason="HONE_TEST_VERL_MODEL names no model that acts"),
]
CPU = [
    "+ray_kwargs.ray_init.num_gpus=2",  # a logical resource: one for the trainer, one for a separate server
    "ray_kwargs.ray_init.num_cpus=8",
    "+ray_kwargs.ray_init.include_dashboard=false",
    "trainer.device=cpu",
    "actor_rollout_ref.rollout.name=cpuvllm",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.model.use_remove_padding=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
]


@dataclass(frozen=True)
class VerlRow:
    """One row of a batch, as verl trained it."""

    key: str  # group, number in the group and branch
    padding: bool  # whether verl has added it
    versions: tuple[int, int]  # the oldest and the newest weights that sampled it
    prompt: list[int]
    response: list[int]
    response_mask: list[int]
    rollout_log_probs: list[float]
    old_log_probs: list[float]  # verl's own
    advantages: list[float]
    rm_scores: list[float]

    @property
    def rollout(self) -> str:
        """The group and the number in the group."""
        return self.key.rpartition("_")[0].replace("_", "-")

    @property
    def branch(self) -> int:
        """Its number among the rows of the rollout."""
        return int(self.key.rpartition("_")[2])

    @property
    def gap(self) -> float:
        """The largest difference of log-probabilities between verl and the engine."""
        pairs = zip(self.old_log_probs, self.rollout_log_probs, self.response_mask, strict=True)
        return max((abs(own - given) for own, given, mask in pairs if mask), default=0.0)

    @property
    def stray(self) -> float:
        """The largest log-probability of a token that the engine did not sample."""
        pairs = zip(self.rollout_log_probs, self.response_mask, strict=True)
        return max((abs(given) for given, mask in pairs if not mask), default=0.0)


@dataclass(frozen=True)
class Training:
    """What a training has left."""

    rewards: list[float]  # per step: verl's mean reward
    batches: list[list[VerlRow]]  # per step
    stored: dict[str, Trajectory]  # group and number in the group -> rollout

    @property
    def rows(self) -> list[VerlRow]:
        """All rows but those that verl has added."""
        return [row for batch in self.batches for row in batch if not row.padding]


def recipe(folder: Path, steps: int, **groups: Any) -> dict[str, Any]:
    return {
        "run_dir": str(folder / "run"),
        "groups_per_step": 4,
        "model": {"path": MODEL},
        "tasks": {
            "curriculum": "more_families",
            "variety": 2,
            "train": 200,
            "test": 0,
            "unseen": 0,
            "seed": 11,
        },
        "agent": {"kind": "bash", "prompts": "tiny"},
        "engine": {"kind": "vllm", "context_tokens": 1024},
        "sampling": {"max_tokens": 64},
        "rollout": {"group_size": 8, "concurrent_episodes": 16},
        "train": {
            "steps": steps,
            "checkpoint": {"every": 100},
            "loss": {"old_logprobs": "recomputed", "clip_high": 0.28},
            "optimizer": {"lr": 5e-4, "max_grad_norm": 0.1, "beta2": 0.95},
            "batch": {"micro_batch_tokens": 4096},
        },
        **groups,
    }


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "in_verl"), str(ROOT)]),
        "VERL_USE_EXTERNAL_MODULES": "hone_verl_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "nvidia",
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "600",
        "RAY_worker_register_timeout_seconds": "600",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_kill_child_processes_on_worker_exit": "false",  # the server's guard ends all that it has started
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HONE_TEST_VLLM_PYTHON": os.environ.get("HONE_TEST_VLLM_PYTHON", sys.executable),
        "HONE_TEST_VERL_FOLDER": str(folder / "peer"),
        "HONE_TEST_ROWS": str(folder / "rows.jsonl"),
    }


def inject_faults(folder: Path, faults: Iterable[tuple[int, int, int]]) -> None:
    """Let the engine fail requests: group and rollout in the group and request, all counted from 0."""
    (folder / "peer").mkdir()
    for group, index, request in faults:
        (folder / "peer" / f"fail-{group}-{index}-{request}").touch()


def train(folder: Path, settings: dict[str, Any], *overrides: str) -> Training:
    """Run `hone verl` with these settings of verl."""
    (folder / "peer").mkdir(exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(settings))
    command = [PYTHON, "-c", "import sys; from hone.cli import main; sys.exit(main())", "verl", str(path)]
    with (folder / "verl.log").open("w") as log:
        done = subprocess.run(
            [*command, "--", *CPU, *overrides],
            stdout=log,
            stderr=log,
            env=environment(folder),
            cwd=folder,
            check=False,
        )
    assert done.returncode == 0, (folder / "verl.log").read_text()[-4000:]
    return read(folder)


def read(folder: Path) -> Training:
    """Return what a training in this folder has left."""
    text = (folder / "verl.log").read_text()
    store = Store(folder / "run" / "rollouts")
    return Training(
        rewards=[float(value) for value in re.findall(r"critic/rewards/mean:(-?[\d.]+)", text)],
        batches=[
            [VerlRow(**{**row, "versions": tuple(row["versions"])}) for row in json.loads(line)]
            for line in (folder / "rows.jsonl").read_text().splitlines()
        ],
        stored={each.rollout_id.split("-", 1)[1]: each for each in map(store.load, store.names())},
    )
