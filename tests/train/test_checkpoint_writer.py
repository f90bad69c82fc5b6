"""Checkpoints are written in a thread, one at a time, and every error reaches the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from hone.train import checkpoint, checkpoint_writer
from hone.train.checkpoint import TrainState
from hone.train.checkpoint_writer import CheckpointWriter
from hone.train.errors import CheckpointError, RankError
from hone.train.settings import CheckpointSettings
from hone.train.trainer import Trainer
from tests.waiting import LIMIT_S


class Disk:
    """A trainer, its learner and a tokenizer; the learner's files are complete once `released` is set."""

    def __init__(self) -> None:
        self.learner = self
        self.released = threading.Event()
        self.error: Exception | None = None

    def save_pretrained(self, directory: str) -> None:
        pass

    def export(self, folder: Path) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def save(self, folder: Path) -> Callable[[], None]:
        def wait() -> None:
            assert self.released.wait(LIMIT_S)
            if self.error is not None:
                raise self.error

        return wait

    def writer(self, directory: Path, **settings: Any) -> CheckpointWriter:
        return CheckpointWriter(directory, cast("Trainer", self), self, CheckpointSettings(**settings))


@pytest.fixture
def disk() -> Disk:
    return Disk()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_run_goes_on_while_a_checkpoint_is_written(tmp_path: Path, disk: Disk) -> None:
    completed: list[list[str]] = []
    with disk.writer(tmp_path) as writer:
        writer.begin(TrainState(step=0), then=lambda: completed.append(names(tmp_path)))
        assert names(tmp_path) == [".writing-step-000000"]
        assert not completed
        disk.released.set()
        assert writer.wait() == tmp_path / "step-000000"
        assert completed == [["step-000000"]]
        assert writer.wait() == tmp_path / "step-000000"


def test_next_checkpoint_waits_for_the_one_before(tmp_path: Path, disk: Disk) -> None:
    with disk.writer(tmp_path) as writer:
        writer.begin(TrainState(step=0))
        threading.Timer(0, disk.released.set).start()
        writer.begin(TrainState(step=1))
        assert checkpoint.latest(tmp_path) in (tmp_path / "step-000000", tmp_path / "step-000001")
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"


def test_write_error_reaches_the_run_once(tmp_path: Path, disk: Disk) -> None:
    disk.released.set()
    disk.error = OSError(28, "No space left on device")
    writer = disk.writer(tmp_path)
    writer.begin(TrainState(step=3))
    with pytest.raises(CheckpointError, match=r"step-000003 cannot be written \(.*No space left on device"):
        writer.begin(TrainState(step=4))
    assert writer.wait() is None
    assert names(tmp_path) == []


def test_error_after_the_write_reaches_the_run(tmp_path: Path, disk: Disk) -> None:
    def fail() -> None:
        raise KeyError("ledger")

    disk.released.set()
    with pytest.raises(KeyError, match="ledger"), disk.writer(tmp_path) as writer:
        writer.begin(TrainState(step=0), then=fail)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000000"


def test_hanging_disk_ends_the_run(tmp_path: Path, disk: Disk) -> None:
    writer = disk.writer(tmp_path, timeout_s=0.01)
    writer.begin(TrainState(step=0))
    with pytest.raises(CheckpointError, match=r"is not complete after 0\.01 s: check its disk"):
        writer.wait()
    disk.released.set()


@pytest.mark.parametrize("fails", [False, True])
def test_failed_run_reports_its_own_error(
    tmp_path: Path, disk: Disk, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk.released.set()
    disk.error = OSError(5, "Input/output error") if fails else None
    writer = disk.writer(tmp_path)
    writer.begin(TrainState(step=0))
    with pytest.raises(ValueError, match="of the run"), writer:
        raise ValueError("of the run")
    assert ("Input/output error" in caplog.text) == fails
    assert names(tmp_path) == ([] if fails else ["step-000000"])


def test_stopped_run_abandons_a_slow_write(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_writer, "ABANDON_S", 0.01)

    begun = asyncio.Event()

    async def run() -> None:
        async with disk.writer(tmp_path) as writer:
            writer.begin(TrainState(step=0))
            begun.set()
            await writer.wait_async()

    async def stop() -> None:
        job = asyncio.create_task(run())
        await begun.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(stop())
    assert "is left incomplete" in caplog.text
    assert checkpoint.latest(tmp_path) is None
    disk.released.set()


def test_run_that_starts_its_ranks_again_waits_for_the_write(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "ABANDON_S", 0.0)

    async def run() -> None:
        async with disk.writer(tmp_path) as writer:
            writer.begin(TrainState(step=0))
            asyncio.get_running_loop().call_soon(disk.released.set)
            raise RankError("a rank was killed")

    with pytest.raises(RankError, match="was killed"):
        asyncio.run(run())
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000000"


def test_hanging_disk_ends_a_run_whose_rank_has_died(tmp_path: Path, disk: Disk) -> None:
    def run() -> None:
        with disk.writer(tmp_path, timeout_s=0.01) as writer:
            writer.begin(TrainState(step=0))
            raise RankError("a rank was killed")

    with pytest.raises(CheckpointError, match=r"is not complete after 0\.01 s"):
        run()
    disk.released.set()
