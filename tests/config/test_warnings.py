"""What a run will meet is said before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import make_plan, resolve
from hone.config.run import Command
from hone.utils.devices import Devices, equal_devices

CPU = Devices(gpus=(), host_gib=100_000.0)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "Qwen/Qwen3-8B"\n[tasks]\ntrain = 2\ntest = 2\nunseen = 0\n')
    return path


def warnings(recipe: Path, *sets: str, devices: Devices = CPU, command: Command = "train") -> tuple[str, ...]:
    return make_plan(resolve(recipe, sets), command, devices).warnings


def test_large_policy_on_a_cpu_is_a_warning_with_hours_and_memory(recipe: Path):
    (warning,) = warnings(recipe)
    assert warning.startswith("the CPU trains and samples a policy of 8.2 billion parameters: about ")
    assert " h " in warning
    assert "GiB of memory; use a machine with a GPU" in warning
    (rollout,) = warnings(recipe, command="eval")
    assert rollout.startswith("the CPU samples ")
    assert " a rollout and " in rollout


def test_policy_on_gpus_or_elsewhere_or_below_a_billion_gets_no_warning(recipe: Path):
    assert warnings(recipe, devices=equal_devices(8, 80), command="train") == ()
    served = ("engine.kind=vllm", 'engine.urls=["http://far:8000"]')
    assert warnings(recipe, *served, command="eval") == ()
    assert warnings(recipe, "model.path=Qwen/Qwen3-0.6B") == ()
