from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hone.train import loop
from hone.train.errors import RankError, TrainError
from hone.train.restarts import Restarts
from hone.train.trainer import Trainer


class Ranks:
    """A trainer whose restarts end as told."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.warnings: list[str] = []

    def restart(self) -> None:
        if (error := self.errors.pop(0)) is not None:
            raise error

    def restarts(self, limit: int) -> Restarts:
        return Restarts(cast("Trainer", cast("Any", self)), limit, self.warnings.append)


def test_ranks_start_again_up_to_the_limit() -> None:
    ranks = Ranks(None, None)
    restarts = ranks.restarts(2)
    restarts.after(RankError("first"))
    restarts.after(RankError("second"))
    with pytest.raises(RankError, match="third"):
        restarts.after(RankError("third"))
    assert [warning.splitlines() for warning in ranks.warnings] == [
        ["first", "The ranks start again, from the last checkpoint."],
        ["second", "The ranks start again, from the last checkpoint."],
    ]


def test_rank_that_dies_at_the_start_takes_a_restart() -> None:
    ranks = Ranks(RankError("at the start"), None, RankError("again"))
    restarts = ranks.restarts(3)
    restarts.after(RankError("first"))
    with pytest.raises(RankError, match="again"):
        restarts.after(RankError("second"))
    assert not ranks.errors


def test_engine_sleeps_while_the_ranks_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPUs of an engine that is awake they would find no room."""
    moments: list[str] = []
    attempts = iter([RankError("rank 1 was killed"), None])

    async def train(_: loop.TrainRun) -> None:
        if (error := next(attempts)) is not None:
            raise error

    @asynccontextmanager
    async def asleep() -> AsyncGenerator[None]:
        moments.append("asleep")
        yield
        moments.append("awake")

    monkeypatch.setattr(loop, "_train", train)
    run: Any = SimpleNamespace(
        trainer=SimpleNamespace(restart=lambda: moments.append("restart")),
        settings=SimpleNamespace(restarts=1),
        warn=lambda _: None,
        while_training=asleep,
    )
    asyncio.run(loop.train(run))
    assert moments == ["asleep", "restart", "awake"]


def test_ranks_that_cannot_start_end_the_run() -> None:
    with pytest.raises(TrainError, match="GPU 0 has"):
        Ranks(TrainError("GPU 0 has 1 GiB free")).restarts(3).after(RankError("first"))
