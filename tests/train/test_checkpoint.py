from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.train import checkpoint
from hone.train.checkpoint import TrainState
from hone.train.errors import CheckpointError
from hone.train.settings import OptimizerSettings
from hone.train.trainer import Trainer
from tests.train.examples import learner_of, model_of, tiny_model, tokenizer, trainer_of, with_logprobs
from tests.train.killed_save import STAGES
from tests.train.trajectories import multi_turn_samples

pytestmark = pytest.mark.model


def save(
    directory: Path, step: int, trainer: Trainer | None = None, keep: int = 2, protect: Collection[int] = ()
) -> Path:
    trainer = trainer or trainer_of(tiny_model(step))
    progress = TrainState(step=step, rollouts={"r0": ["trained", None]})
    return checkpoint.begin_save(
        directory, progress, trainer=trainer, tokenizer=tokenizer(), keep=keep, protect=protect
    )()


def same_weights(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_transformers_loads_a_checkpoint(tmp_path: Path) -> None:
    model = tiny_model()
    path = save(tmp_path, 3, trainer_of(model))
    assert same_weights(AutoModelForCausalLM.from_pretrained(path), model)
    assert AutoTokenizer.from_pretrained(path).decode([5, 6]) == "w5 w6"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_run_continues_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    trainer = trainer_of(tiny_model(dtype=dtype), optimizer=OptimizerSettings(lr=1e-6))
    samples = with_logprobs(multi_turn_samples(8), tiny_model())
    trainer.step(samples)
    path = save(tmp_path, 0, trainer)

    def go_on(who: Trainer) -> list[float]:
        who.step(samples)
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    expected = go_on(trainer)
    other = trainer_of(tiny_model(7, dtype), optimizer=OptimizerSettings(lr=1e-6))
    progress = checkpoint.restore(path, other)
    assert (progress.step, progress.rollouts) == (0, {"r0": ["trained", None]})
    assert go_on(other) == expected
    assert same_weights(model_of(trainer), model_of(other))
    for mine, theirs in zip(learner_of(trainer).masters, learner_of(other).masters, strict=True):
        assert torch.equal(mine, theirs)


def test_restore_writes_into_weights_shared_with_an_engine(tmp_path: Path) -> None:
    path = save(tmp_path, 0)
    model = tiny_model(4)
    shared = list(model.parameters())
    checkpoint.restore(path, trainer_of(model))
    assert all(a is b for a, b in zip(shared, model.parameters(), strict=True))
    assert same_weights(model, tiny_model(0))


def test_newest_and_protected_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in range(4):
        save(tmp_path, step, protect=[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000", "step-000002", "step-000003"]
    save(tmp_path, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000004"]
    shutil.rmtree(tmp_path / "step-000004")
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000003"
    assert checkpoint.latest(tmp_path / "nowhere") is None


@pytest.mark.full
def test_kill_9_during_a_save_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.killed_save", str(tmp_path)]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert run.stdout.splitlines() == [f"{stage} -9" for stage in STAGES], run.stderr
    for stage in STAGES:
        directory = tmp_path / stage
        expected = 1 if stage in ("renamed", "deletion") else 0
        path = checkpoint.latest(directory)
        assert path == directory / f"step-{expected:06d}", stage
        trainer = trainer_of(tiny_model(9))
        checkpoint.restore(path, trainer)
        assert same_weights(model_of(trainer), tiny_model(expected))
        save(directory, 2, keep=1)  # the same command again: it writes over the remains and sweeps them
        assert [p.name for p in directory.iterdir()] == ["step-000002"]


def test_incomplete_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    (tmp_path / "step-000001" / "COMPLETE").unlink()
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000000"
    assert "step-000001 is incomplete" in caplog.text
    save(tmp_path, 1)  # trained again, it takes the place of the remains
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"
    for path in tmp_path.glob("*/COMPLETE"):
        path.unlink()
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        checkpoint.latest(tmp_path)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [(cut_in_half, "bytes instead of"), (flip_a_bit, "has been changed"), (Path.unlink, "lacks the file")],
)
@pytest.mark.parametrize("name", ["model.safetensors", "state/__0_0.distcp"])
def test_damaged_checkpoint_is_refused_with_advice(
    tmp_path: Path, name: str, damage: object, says: str
) -> None:
    save(tmp_path, 0)
    damage(save(tmp_path, 1) / name)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=says) as refusal:
        checkpoint.latest(tmp_path)
    assert f"delete {tmp_path / 'step-000001'} to continue from step-000000" in str(refusal.value)
    shutil.rmtree(tmp_path / "step-000001")
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000000"


@pytest.mark.parametrize("room", [2_000, 100_000], ids=["weights", "optimizer"])
def test_full_disk_keeps_the_earlier_checkpoint(tmp_path: Path, room: int) -> None:
    trainer = trainer_of(tiny_model())
    samples = with_logprobs(multi_turn_samples(8), model_of(trainer))
    trainer.step(samples)  # now the state outweighs the model
    first = save(tmp_path, 0, trainer)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = {p.name: p.stat().st_size for p in first.rglob("*")}
    assert sizes["model.safetensors"] > 2_000
    assert sizes["__0_0.distcp"] > max(sizes["model.safetensors"], 100_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # stands for a disk that fills up
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written \(.*free some space") as refusal:
            save(tmp_path, 1, trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(refusal.value)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000"]
    assert checkpoint.latest(tmp_path) == first
