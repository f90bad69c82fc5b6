"""kill -9 of a rank at any point: the run goes on by itself and ends like an undisturbed one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hone.rollout.ledger import Ledger
from hone.train import checkpoint
from hone.train.loop import train
from hone.train.loss import policy_objective
from hone.train.metrics import read_metrics
from hone.train.ranks import launcher
from hone.train.ranks.learner import RanksLearner
from hone.train.settings import PassSettings
from hone.train.trainer import rl_trainer
from tests.train.examples import tiny_model
from tests.train.ranks import killed_rank
from tests.train.ranks.cases import make_spec
from tests.train.toy_run import ToyRun, settings_of

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.full]

STEPS = 4
SETTINGS = settings_of(STEPS, learner="ranks", ranks=2, restarts=1)
# What depends on the clock and on the machine.
CHANGING = {"time", "seconds", "wait_s", "tokens_per_s", "peak_memory_gib", "parked"}
CHANGING |= {"busy/engine", "busy/sandbox", "busy/trainer"}


def once(at: Callable[[str, int], None]) -> Callable[[str, int], None]:
    """Call `at` for the first time only that a point is reached: not again after the restart."""
    seen: set[tuple[str, int]] = set()

    def first(where: str, step: int) -> None:
        if (where, step) not in seen:
            seen.add((where, step))
            at(where, step)

    return first


@dataclass
class Ranks:
    """Two ranks that serve several runs in turn, from the same start state."""

    learner: RanksLearner
    start: Path
    kills: Path

    def kill(self, rank: int) -> None:
        os.kill(self.learner.pids[rank], signal.SIGKILL)

    def train(
        self, run_dir: Path, at: Callable[[str, int], None] = lambda *_: None, restarts: int = 1
    ) -> list[str]:
        """Train a run to its end; return its warnings."""
        self.learner.load(self.start)
        warnings: list[str] = []
        settings = SETTINGS.model_copy(update={"restarts": restarts})
        trainer = rl_trainer(self.learner, self.learner.spec.objective, settings)
        run = ToyRun(run_dir, settings, at, trainer)
        run.parts = replace(run.parts, warn=warnings.append)
        try:
            asyncio.run(train(run.parts))
        finally:
            run.close()
        assert not list(self.kills.iterdir()), "no rank has reached the point"
        return warnings


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("ranks")
    kills = folder / "kills"
    kills.mkdir()
    tiny_model().save_pretrained(folder / "tiny")
    spec = make_spec(
        folder,
        architecture="tiny",
        objective=policy_objective(SETTINGS.loss, temperature=1.0),
        optimizer=SETTINGS.optimizer,
    )
    spec = replace(spec, passes=PassSettings(micro_batch_tokens=20))  # several passes for each rank
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "WORKER", killed_rank.__name__)
        patch.setenv(killed_rank.FOLDER, str(kills))
        learner = RanksLearner(spec, logs=folder / "logs")
        learner.save(folder / "start")()
        yield Ranks(learner, folder / "start", kills)
        learner.close()


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert not ranks.train(run_dir)
    return run_dir


def assert_equal(run_dir: Path, other: Path) -> None:
    """Compare weights and optimiser states bit for bit, metrics, and the balance of the ledgers."""
    ends = [checkpoint.latest(path / "checkpoints") for path in (run_dir, other)]
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        one, two = (load_file(end / name) for end in ends if end)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    for mine, theirs in zip(read_metrics(run_dir), read_metrics(other), strict=True):
        assert {k: v for k, v in mine.items() if k not in CHANGING} == {
            k: v for k, v in theirs.items() if k not in CHANGING
        }
    with Ledger.read(run_dir) as ledger:
        balance = ledger.balance()
    assert (balance.trained, balance.masked, balance.in_flight, balance.steps) == (60, 4, 0, STEPS)


# (point, rank, call), counted from the moment in step 2 that comes before
WHILE_TRAINING = [
    ("forward", 1, 2),
    ("pass", 0, 2),
    ("all_reduce", 1, 3),
    ("backward", 0, 2),
    ("optimizer", 1, 2),
    ("updated", 0, 1),
]
AFTER_TRAINING = [
    ("export", 1, 1),
    ("published", 0, 1),
    ("published", 1, 2),
    ("shards", 1, 1),
    ("shards", 0, 1),
    ("saved", 0, 1),
]


@pytest.mark.parametrize(
    ("moment", "point", "rank", "call"),
    [("collected", *point) for point in WHILE_TRAINING] + [("trained", *point) for point in AFTER_TRAINING],
)
def test_run_goes_on_after_the_death_of_a_rank(
    ranks: Ranks, undisturbed: Path, tmp_path: Path, moment: str, point: str, rank: int, call: int
) -> None:
    def at(where: str, step: int) -> None:
        if (where, step) == (moment, 2):
            killed_rank.kill_at(ranks.kills, point, rank, call)

    warnings = ranks.train(tmp_path / "run", once(at))
    assert len(warnings) == 1
    assert f"rank {rank} was killed by signal 9" in warnings[0]
    assert_equal(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("moment", ["collected", "completing", "ended"])
def test_run_goes_on_after_the_death_of_an_idle_rank(
    ranks: Ranks, undisturbed: Path, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(where: str, step: int) -> None:
        if (where, step) == (moment, 2):
            ranks.kill(1)

    def mark(folder: Path) -> None:
        watched("completing", checkpoint.read_state(folder).step)
        mark_complete(folder)

    watched = once(at)
    mark_complete = checkpoint._mark_complete
    monkeypatch.setattr(checkpoint, "_mark_complete", mark)
    warnings = ranks.train(tmp_path / "run", watched)
    assert len(warnings) == 1
    assert "rank 1 was killed by signal 9" in warnings[0]
    assert_equal(tmp_path / "run", undisturbed)


def test_ranks_that_die_while_they_start_again_take_restarts(
    ranks: Ranks, undisturbed: Path, tmp_path: Path
) -> None:
    def at(where: str, step: int) -> None:
        if (where, step) == ("collected", 2):
            for point, rank in (("forward", 0), ("start", 1), ("load", 0)):
                killed_rank.kill_at(ranks.kills, point, rank, 1)

    assert len(ranks.train(tmp_path / "run", once(at), restarts=3)) == 3
    assert_equal(tmp_path / "run", undisturbed)
