"""`harbor run`, the published program, on Hone's sandboxes and with Hone's verifier."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hone.tasks.curriculum import generate
from hone.tasks.formats import FORMATS
from hone.tasks.formats.harbor import write_folders
from hone.tasks.settings import TasksSettings
from tests.integrations.harbor.attacks import attacks
from tests.integrations.harbor.folders import folders, write_all

PYTHON = os.environ.get("HONE_TEST_HARBOR_PYTHON", "")
pytestmark = [
    pytest.mark.full,
    pytest.mark.sandbox,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="HONE_TEST_HARBOR_PYTHON names no Python with harbor 0.25"),
]
HERE = Path(__file__).parents[3]
ENVIRONMENT = "hone.integrations.harbor:HoneEnvironment"
VERIFIER = ("--verifier", "hone.integrations.harbor:HoneVerifier")


def harbor_run(tasks: Path, agent: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(PYTHON).parent / "harbor"), "run", "-p", str(tasks), "-a", agent, "-e", ENVIRONMENT,
        "-o", str(out), "-n", "2", *options,
    ]  # fmt: skip
    quiet = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env = {**os.environ, **quiet, "PYTHONPATH": str(HERE), "COLUMNS": "1000"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1100, check=False)


def run(tasks: Path, agent: str, out: Path, *options: str) -> Mapping[str, float | None]:
    """Return the reward of each task by its folder's name; None for a trial without one."""
    done = harbor_run(tasks, agent, out, *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rewards: dict[str, float | None] = {}
    for path in out.glob("*/*/result.json"):
        result = json.loads(path.read_text())
        found = (result["verifier_result"] or {}).get("rewards") or {}
        rewards[Path(result["task_id"]["path"]).name] = found.get("reward")
    return rewards


def test_oracle_earns_one_and_nop_nothing_on_every_task(tmp_path: Path) -> None:
    write_all(tmp_path / "tasks")
    expected = dict.fromkeys(folders(), 1.0)
    assert run(tmp_path / "tasks", "oracle", tmp_path / "oracle", *VERIFIER) == expected
    assert run(tmp_path / "tasks", "nop", tmp_path / "nop", *VERIFIER) == dict.fromkeys(folders(), 0.0)


def test_exported_tasks_are_solved_by_their_reference(tmp_path: Path) -> None:
    tasks = generate(TasksSettings(train=3, test=1, validation=1, unseen=1)).train
    write_folders(map(FORMATS["harbor"].write, tasks), tmp_path / "tasks")
    assert set(run(tmp_path / "tasks", "oracle", tmp_path / "oracle", *VERIFIER).values()) == {1.0}
    assert set(run(tmp_path / "tasks", "nop", tmp_path / "nop", *VERIFIER).values()) == {0.0}


def test_image_of_an_exported_task_is_not_replaced(tmp_path: Path) -> None:
    (task,) = generate(TasksSettings(train=1, test=1, validation=1, unseen=1)).train
    write_folders([FORMATS["harbor"].write(task)], tmp_path / "tasks")
    done = harbor_run(tmp_path / "tasks", "oracle", tmp_path / "out", "--ek", "image=host", *VERIFIER)
    assert done.returncode != 0
    assert "--ek image=host has no effect" in done.stdout + done.stderr


def test_attacks_pay_with_harbors_verifier_and_not_with_hones(tmp_path: Path) -> None:
    write_all(tmp_path / "tasks", attacks())
    own = run(tmp_path / "tasks", "oracle", tmp_path / "own")
    assert sum(reward == 1 for reward in own.values()) >= 5, own
    assert run(tmp_path / "tasks", "oracle", tmp_path / "hone", *VERIFIER) == dict.fromkeys(attacks(), 0.0)
