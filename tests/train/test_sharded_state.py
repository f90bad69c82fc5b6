"""The training state survives a folder bit for bit, and a folder that does not fit is refused."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from hone.train.errors import CheckpointError
from hone.train.optimizer import BatchedMuon
from hone.train.sharded_state import begin_save, load

pytestmark = pytest.mark.model

Weights = dict[str, Tensor]


def trained(seed: int = 0, steps: int = 2, names: str = "abc") -> tuple[Weights, list[Optimizer]]:
    """Return weights and optimisers after some updates; `c` is never updated."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {name: Parameter(torch.rand(5, 3, generator=generator)) for name in names}
    optimizers = [
        BatchedMuon([weights["a"]], lr=0.1),
        AdamW([p for name, p in weights.items() if name != "a"], lr=0.1, fused=True),
    ]
    update(weights, optimizers, steps)
    return weights, optimizers


def update(weights: Weights, optimizers: list[Optimizer], steps: int = 1) -> None:
    for _ in range(steps):
        for name, tensor in weights.items():
            tensor.grad = None if name == "c" else tensor.detach().cos()
        for optimizer in optimizers:
            optimizer.step()


def test_training_continues_bit_for_bit_from_a_folder(tmp_path: Path) -> None:
    weights, optimizers = trained()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)

    def drawn() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    wait = begin_save(tmp_path / "state", weights, optimizers)
    expected = drawn()
    update(weights, optimizers)
    wait()
    other, others = trained(seed=7, steps=0)
    addresses = [tensor.data_ptr() for tensor in other.values()]
    load(tmp_path / "state", other, others)
    assert drawn() == expected
    assert not others[1].state[other["c"]]
    update(other, others)
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert [tensor.data_ptr() for tensor in other.values()] == addresses


def test_only_the_given_weights_are_stored(tmp_path: Path) -> None:
    weights, optimizers = trained()
    begin_save(tmp_path, {"a": weights["a"]}, optimizers[:1])()
    size = (tmp_path / "__0_0.distcp").stat().st_size
    begin_save(tmp_path / "all", weights, optimizers)()
    assert size < (tmp_path / "all" / "__0_0.distcp").stat().st_size / 2
    other, others = trained(seed=7)
    load(tmp_path, {"a": other["a"]}, others[:1])
    assert torch.equal(other["a"], weights["a"])


def test_state_of_another_model_is_refused(tmp_path: Path) -> None:
    begin_save(tmp_path, *trained())()
    with pytest.raises(CheckpointError, match="weights/d, which is missing there; restore the settings"):
        load(tmp_path, *trained(names="abcd"))
    with pytest.raises(CheckpointError, match="optimizer/step/b, which this run does not train"):
        load(tmp_path, *trained(names="ac"))
    weights, optimizers = trained()
    weights["c"] = torch.zeros(5, 4)
    with pytest.raises(CheckpointError, match=r"weights/c has the shape \(5, 3\) there and \(5, 4\) here"):
        load(tmp_path, weights, optimizers)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [cut, Path.unlink])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "random-0.pt"])
def test_missing_or_cut_file_is_one_sentence(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    begin_save(tmp_path, *trained())()
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{tmp_path} cannot be loaded: ") as refusal:
        load(tmp_path, *trained())
    assert "\n" not in str(refusal.value)


def test_prepared_metadata_runs_no_code(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/attacked",)

    begin_save(tmp_path, *trained())()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(CheckpointError, match=r"contains (posix|nt|os)\.system, which no checkpoint does"):
        load(tmp_path, *trained())
    assert not (tmp_path / "attacked").exists()


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    wait = begin_save(tmp_path / "file" / "state", *trained())
    with pytest.raises(CheckpointError, match=r"cannot be written: .*Not a directory"):
        wait()


@pytest.mark.full
def test_any_number_of_ranks_loads_what_another_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.sharded_ranks", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    ended = [line.split(": ") for line in run.stdout.splitlines()]
    assert len(ended) == 13, run.stderr
    assert ended.pop() == ["one dies", "0 9"], run.stderr
    assert all(set(codes.split()) == {"0"} for _, codes in ended), run.stdout + run.stderr
