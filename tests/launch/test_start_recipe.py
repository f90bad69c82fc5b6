"""The recipe of `hone start`: complete, and for the smallest machine that the model fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError, dump, resolve
from hone.launch.start_recipe import make_recipe


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_without_a_model_the_run_makes_a_tiny_one(tmp_path: Path) -> None:
    settings, hardware = make_recipe(tmp_path, None, 10, ())
    assert (settings.makes_model, settings.demonstrations.rollouts) == (True, 5)
    assert settings.tasks.source == str(tmp_path / "train.jsonl")
    assert settings.tasks.evaluation == tmp_path / "test.jsonl"
    assert settings.run_dir == tmp_path / "run"
    assert hardware.machine.startswith("one machine without a GPU")
    assert hardware.here == ""


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        ("Qwen/Qwen3-0.6B", "one machine with 1 GPU of 24 GiB"),
        ("Qwen/Qwen3-1.7B", "one machine with 1 GPU of 80 GiB"),
        ("Qwen/Qwen3-8B", "one machine with 4 GPUs of 80 GiB each"),
        ("Qwen/Qwen3-14B", "one machine with 8 GPUs of 80 GiB each"),
        ("Qwen/Qwen3-32B", ""),
    ],
)
def test_hardware_is_the_smallest_machine_that_fits(tmp_path: Path, model: str, machine: str) -> None:
    settings, hardware = make_recipe(tmp_path, model, 10, ())
    assert hardware.machine == machine
    assert hardware.here.startswith("its model does not fit one machine without a GPU")
    assert (settings.engine.kind, settings.engine.context_tokens) == ("vllm", 32768)


def test_settings_of_the_user_come_last(tmp_path: Path) -> None:
    settings, _ = make_recipe(
        tmp_path, "Qwen/Qwen3-0.6B", 10, ("train.steps=7", "engine.context_tokens=4096")
    )
    assert (settings.train.steps, settings.engine.context_tokens) == (7, 4096)


def test_written_recipe_resolves_to_the_same_settings(tmp_path: Path) -> None:
    settings, _ = make_recipe(tmp_path, None, 4, ("train.steps=7",))
    (tmp_path / "recipe.toml").write_text(dump(settings))
    assert resolve(tmp_path / "recipe.toml") == settings


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model folder"):
        make_recipe(tmp_path, str(tmp_path / "nowhere"), 4, ())
