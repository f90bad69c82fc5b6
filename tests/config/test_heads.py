"""Sizes that do not divide a model's heads, which are refused before anything starts."""

from pathlib import Path

import pytest

from hone.config import resolve
from hone.config.fitting import refusal
from hone.config.run import Command
from hone.utils.devices import Devices, equal_devices

MACHINE = equal_devices(16, 1000)
JUDGE = ["judge.enabled=true", "judge.engine.kind=sglang", "train.algorithm.reward=final"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of a model with 32 query heads and 8 key and value heads."""
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "Qwen/Qwen3-8B"\ndtype = "bfloat16"\n[engine]\nkind = "vllm"\n')
    return path


def ranks(count: int, *sets: str) -> list[str]:
    return ["train.learner=ranks", f"train.ranks={count}", *(f"train.parallel.{each}" for each in sets)]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ranks(3, "tensor=3"),
            "train.parallel.tensor is 3, but the model has 32 query heads and 8 key and value heads: set it "
            "to a divisor of both",
        ),
        (ranks(16, "tensor=16"), "train.parallel.tensor is 16, but the model has 32 query heads and 8 key"),
        (ranks(6, "sequence=3"), "train.parallel.sequence is 3, but the model has 32 query heads and 8 key"),
        (
            ranks(24, "tensor=8", "sequence=3"),
            "train.parallel.sequence is 3, but train.parallel.tensor = 8 leaves 4 query heads and 1 key",
        ),
        (["engine.tensor_parallel=3"], "engine.tensor_parallel is 3, but the model has 32 query heads and 8"),
        (
            [*JUDGE, "judge.engine.tensor_parallel=5"],
            "judge.engine.tensor_parallel is 5, but the model has 32 query heads",
        ),
    ],
)
def test_size_that_does_not_divide_the_heads_is_refused(recipe: Path, sets: list[str], said: str):
    text = refusal(resolve(recipe, sets), "train", equal_devices(32, 1000))
    assert text.startswith(said)
    assert "No setting makes it fit" not in text


@pytest.mark.parametrize(
    "sets",
    [
        ranks(8, "tensor=8"),
        ranks(16, "sequence=16"),  # 8 key and value heads, each on two ranks
        ranks(16, "tensor=4", "sequence=4"),
        ["engine.tensor_parallel=16", "placement.trainer=cpu"],
    ],
)
def test_size_that_divides_the_heads_is_accepted(recipe: Path, sets: list[str]):
    assert "heads" not in refusal(resolve(recipe, sets), "train", MACHINE)


@pytest.mark.parametrize(
    ("sets", "command"),
    [(["engine.tensor_parallel=3"], "sft"), (ranks(3, "tensor=3"), "eval")],
)
def test_sizes_that_a_command_does_not_use_are_not_checked(recipe: Path, sets: list[str], command: Command):
    assert refusal(resolve(recipe, sets), command, MACHINE) == ""


def test_heads_are_checked_without_a_gpu(recipe: Path):
    machine = Devices(gpus=(), host_gib=4000)
    text = refusal(resolve(recipe, ranks(3, "sequence=3")), "train", machine)
    assert text.startswith("train.parallel.sequence is 3, but the model has 32 query heads")
