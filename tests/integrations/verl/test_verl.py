"""Real verl on the CPU, with a real vLLM server and real sandboxes.

HONE_TEST_VERL_PYTHON is the Python of an environment with verl 0.9.1 and Hone's base install, and
HONE_TEST_VLLM_PYTHON one with vLLM, by default this one. HONE_TEST_VERL_MODEL is a model that solves some
tasks of the curriculum with the tiny prompts, such as the start model of the quickstart.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from hone.config import RunSettings
from hone.integrations.verl.launch import plan_verl, write_files
from hone.rollout.rewards import is_infrastructure_fault
from hone.rollout.store import Store

PYTHON = os.environ.get("HONE_TEST_VERL_PYTHON", "")
MODEL = os.environ.get("HONE_TEST_VERL_MODEL", "")
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
pytestmark = [
    pytest.mark.full,
    pytest.mark.vllm,
    pytest.mark.sandbox,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not PYTHON, reason="HONE_TEST_VERL_PYTHON names no Python with verl"),
    pytest.mark.skipif(not MODEL, reason="HONE_TEST_VERL_MODEL names no model that acts"),
]
CPU = [
    "+ray_kwargs.ray_init.num_gpus=1",
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
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HONE_TEST_VLLM_PYTHON": os.environ.get("HONE_TEST_VLLM_PYTHON", sys.executable),
        "HONE_TEST_VERL_FOLDER": str(folder / "peer"),
        "HONE_TEST_METRICS": str(folder / "metrics.jsonl"),
    }


def train(folder: Path, settings: dict[str, Any]) -> tuple[list[dict[str, float]], list[float]]:
    """Run `hone verl`; return verl's comparison of log-probabilities and its mean reward, for each step."""
    (folder / "peer").mkdir(exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(settings))
    command = [PYTHON, "-c", "import sys; from hone.cli import main; sys.exit(main())", "verl", str(path)]
    with (folder / "verl.log").open("w") as log:
        done = subprocess.run(
            [*command, "--", *CPU], stdout=log, stderr=log, env=environment(folder), cwd=folder, check=False
        )
    text = (folder / "verl.log").read_text()
    assert done.returncode == 0, text[-4000:]
    rewards = [float(value) for value in re.findall(r"critic/rewards/mean:(-?[\d.]+)", text)]
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], rewards


def test_agent_loop_gives_exact_rows_and_none_for_a_fault(tmp_path: Path) -> None:
    faults = 3
    settings = RunSettings.model_validate(
        recipe(
            tmp_path,
            1,
            rollout={"group_size": 8, "concurrent_episodes": 8, "attempts": 1},
        )
    )
    plan = plan_verl(settings)
    write_files(plan)

    done = subprocess.run(
        [PYTHON, HERE / "in_verl" / "agent_loop.py", plan.files.agent_loop, MODEL, str(faults)],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("FOUND "))

    assert found["rows"].count(0) == faults
    assert found["gap"] <= 1e-4
    assert found["stray"] == 0
    assert found["versions"] == [4]
    assert all(len(set(rewards)) == 1 for rewards in found["rewards"])
    store = Store(tmp_path / "run" / "rollouts")
    stored = {each.rollout_id: each for each in map(store.load, store.names())}
    trained = dict(zip(found["rollout_ids"], found["trained"], strict=True))
    assert trained == {name: stored[name].tree.sampled_tokens for name in trained}


def test_reward_rises_in_twenty_steps_on_exact_logprobs(tmp_path: Path) -> None:
    compared, rewards = train(tmp_path, recipe(tmp_path, 20))

    assert len(compared) == len(rewards) == 20
    assert max(step["hone/logprob_gap"] for step in compared) <= 1e-4
    assert max(step["hone/stray_logprob"] for step in compared) == 0
    assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:5])


def test_faults_have_no_row_in_a_training_of_verl(tmp_path: Path) -> None:
    steps, faults = 3, 4
    (tmp_path / "peer").mkdir()
    for number in range(faults):
        (tmp_path / "peer" / f"fail-{number}").touch()
    settings = recipe(
        tmp_path,
        steps,
        rollout={"group_size": 8, "concurrent_episodes": 16, "attempts": 1},
    )

    compared, rewards = train(tmp_path, settings)

    assert len(rewards) == steps
    assert max(step["hone/logprob_gap"] for step in compared) <= 1e-4
    store = Store(tmp_path / "run" / "rollouts")
    stored = [store.load(name) for name in store.names()]
    failed = [each for each in stored if is_infrastructure_fault(each.outcome)]
    trained = [each for each in stored if not is_infrastructure_fault(each.outcome)]
    assert len(stored) == steps * 32
    assert len(failed) == faults
    assert sum(step["hone/rows"] for step in compared) == len(trained)
    tokens = sum(each.tree.sampled_tokens for each in trained)
    assert sum(step["hone/trained_tokens"] for step in compared) == tokens
