"""What `hone verl` and `hone slime` print, write and refuse before they start anything."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from hone.cli import main
from hone.config import ConfigError, RunSettings, resolve
from hone.integrations.peer import PeerMissing
from hone.integrations.slime.launch import plan_slime, require_checkout
from hone.integrations.slime.launch import write_files as write_slime
from hone.integrations.verl.launch import LOOP, plan_verl, require_verl, write_files


def recipe(tmp_path: Path, kind: str = "vllm", **groups: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "run_dir": tmp_path / "run",
            "model": {"path": "Qwen/Qwen3-0.6B"},
            "tasks": {"train": 8, "validation": 2, "test": 0, "unseen": 0},
            "engine": {"kind": kind},
            **groups,
        }
    )


def test_dry_run_prints_a_command_that_a_shell_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[model]\npath = "Qwen/Qwen3-0.6B"\n[engine]\nkind = "vllm"\n[tasks]\ntrain = 8\n')
    monkeypatch.setattr(sys, "argv", ["hone", "verl", str(path), "--dry-run", "--", "trainer.nnodes=2"])

    assert main() == 0

    printed, _, rest = capsys.readouterr().out.partition("Nothing was started.")
    words = shlex.split(printed)
    assert words[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B" in words
    assert words[-1] == "trainer.nnodes=2"
    assert rest
    assert not (tmp_path / "runs").exists()


def test_workers_of_verl_find_the_recipe_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = recipe(tmp_path, run_dir=Path("run"), train={"validate": {"every": 5}})

    plan = plan_verl(settings)
    write_files(plan)

    (loop,) = yaml.safe_load(plan.files.agent_loop.read_text())
    assert (loop["name"], loop["_target_"]) == ("hone", LOOP)
    written = resolve(Path(loop["recipe"]))
    assert written.run_dir == (tmp_path / "run").resolve()
    assert written.tasks == settings.tasks
    rows = pq.read_table(plan.files.train).to_pylist()
    assert [row["extra_info"]["task_id"] for row in rows] == [task.id for task in plan.splits.train]
    validation = pq.read_table(plan.files.validation).to_pylist()
    assert [row["extra_info"]["split"] for row in validation] == ["validation"] * 2


def test_hooks_of_slime_find_the_recipe_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    plan = plan_slime(recipe(tmp_path, "sglang", run_dir=Path("run")), None, ["--num-layers", "36"])
    write_slime(plan)

    config = yaml.safe_load(plan.config.read_text())
    assert resolve(Path(config["hone_recipe"])).run_dir == (tmp_path / "run").resolve()
    assert plan.command[1] == "train.py"
    assert plan.command[-2:] == ["--num-layers", "36"]


def test_step_behind_is_slimes_asynchronous_script(tmp_path: Path) -> None:
    plan = plan_slime(recipe(tmp_path, "sglang", rollout={"max_staleness": 1}), Path("slime"))

    assert plan.script == Path("slime/train_async.py")


@pytest.mark.parametrize("plan", [plan_verl, plan_slime])
def test_recipe_without_a_model_is_refused(tmp_path: Path, plan: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.path is missing"):
        plan(recipe(tmp_path, "sglang", model=None))


def test_fewer_tasks_than_groups_of_a_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="groups_per_step is 9 and the training set has 8 tasks"):
        plan_verl(recipe(tmp_path, groups_per_step=9))


def test_missing_verl_is_named_with_its_version() -> None:
    with pytest.raises(PeerMissing, match=r"verl is not installed.*==0\.9\.1 .*pip install verl==0\.9\.1"):
        require_verl()


def test_missing_checkout_of_slime_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no checkout of slime: pass --checkout"):
        require_checkout(tmp_path / "train.py")
