"""kill -9 at any moment, then the same command: it finishes, and the ledger balances."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from hone.rollout.errors import LedgerError
from hone.rollout.ledger import Disposition, Ledger
from tests.e2e.small_run import HONE, RECIPE, REPOSITORY, TIMEOUT_S, hone, sets
from tests.train.ranks.killed_rank import FOLDER, kill_at
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]  # the first one waits for the quickstart, too

GROUPS = 2  # per step
MOMENTS = ("rollout", "optimizer_step", "checkpoint_writing", "between_checkpoint_and_commit")


def alone(run_dir: Path, finished: Path, **more: object) -> list[str]:
    """Return settings of a training of three steps of short rollouts, each reply computed without a cache.

    Other rows of a batch, or a cached prefix, change the last bits of logits, and so which token is drawn
    where two are almost a tie.
    """
    engine = {"engine__max_batch": 1, "engine__cached_sessions": 0}
    short = {"agent__turn_limit": 3, "sampling__max_tokens": 24}
    return sets(run_dir, groups_per_step=GROUPS, model__path=finished / "start", **engine, **short, **more)


@pytest.fixture(scope="module")
def undisturbed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a training that was not killed."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    hone("train", str(RECIPE), *alone(run_dir, finished))
    return run_dir


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_run_resumes_where_it_was(
    moment: str, finished: Path, undisturbed: Path, tmp_path: Path
) -> None:
    arguments = [str(RECIPE), *alone(tmp_path / "run", finished)]
    killed = subprocess.run(
        [sys.executable, "-m", "tests.e2e.killed_training", moment, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Ledger.read(tmp_path / "run") as ledger:
        finished_before = {e.rollout_id for e in ledger.entries() if e.outcome is not None}

    hone("train", *arguments)

    shown = json.loads(hone("show", str(tmp_path / "run"), "--json").stdout)
    assert shown["steps"] == 3
    assert shown["in_flight"] == 0
    assert shown["dispatched"] == shown["trained"] + shown["masked"] + sum(shown["dropped"].values())
    assert shown["trained"] == 3 * GROUPS * 4
    with Ledger.read(tmp_path / "run") as ledger:
        trained = {e.rollout_id for e in ledger.entries() if e.disposition is Disposition.TRAINED}
    assert finished_before <= trained, "a finished rollout was dropped"
    if moment != "rollout":  # an interrupted rollout is sampled again; finished ones give the same weights
        assert same_weights(tmp_path / "run", undisturbed), "the resumed run has other weights"


@pytest.mark.full
def test_asynchronous_run_survives_ten_kills_at_any_moment(finished: Path, tmp_path: Path) -> None:
    """Each kill comes a random number of ledger events after the last one, whatever the run is doing."""
    idle = {"train__max_idle_steps": 99}  # whether anything is learned does not matter here
    settings = {"rollout__max_staleness": 2, "train__steps": 6, "train__checkpoint__every": 2, **idle}
    arguments = ["train", str(RECIPE), *alone(tmp_path / "run", finished, **settings)]
    moments = random.Random(0)
    kills = 0
    while kills < 10 and killed_after(moments.randint(1, 12), tmp_path / "run", arguments):
        kills += 1
    hone(*arguments)
    assert kills >= 5, "it ended before it was killed often"
    with Ledger.read(tmp_path / "run") as ledger:
        entries, balance = ledger.entries(), ledger.balance()
    consumed = [entry for entry in entries if entry.step is not None]
    assert (balance.steps, balance.in_flight) == (6, 0)
    assert Counter(entry.position for entry in consumed) == dict.fromkeys(range(6 * GROUPS), 4)
    assert Counter(entry.step for entry in consumed) == dict.fromkeys(range(6), 4 * GROUPS)
    assert max(entry.staleness or 0 for entry in consumed) <= 2
    assert set(balance.dropped) <= {"interrupted", "rolled_back"}


def killed_after(events: int, run: Path, arguments: list[str]) -> bool:
    """Run a command until the ledger has so many more events, and kill it; return whether it was killed."""
    before = ledger_events(run)
    with (run.parent / "log").open("wb") as log:
        process = subprocess.Popen([HONE, *arguments], cwd=REPOSITORY, stdout=log, stderr=log)
        wait_until(
            lambda: ledger_events(run) >= before + events or process.poll() is not None, limit_s=TIMEOUT_S
        )
        ended = process.poll()
        process.kill()
        process.wait()
    assert ended in (None, 0), (run.parent / "log").read_text()
    return ended is None


def ledger_events(run: Path) -> int:
    """Dispatches, ends and disposals so far."""
    try:
        with Ledger.read(run) as ledger:
            entries = ledger.entries()
    except LedgerError:  # not made yet
        return 0
    return sum(1 + (entry.outcome is not None) + (entry.disposition is not None) for entry in entries)


@pytest.mark.full
def test_training_goes_on_by_itself_after_the_death_of_a_rank(finished: Path, tmp_path: Path) -> None:
    ranks = {"train__learner": "ranks", "train__ranks": 2}
    whole, broken, kills = (tmp_path / name for name in ("whole", "broken", "kills"))
    hone("train", str(RECIPE), *alone(whole, finished, **ranks))
    kills.mkdir()
    kill_at(kills, "optimizer", rank=1, call=6)  # the third optimiser step, of the second step
    arguments = [str(RECIPE), *alone(broken, finished, **ranks)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.killed_training", "rank", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, FOLDER: str(kills)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert not list(kills.iterdir()), "the rank was not killed"
    assert "rank 1 was killed by signal 9" in done.stdout + done.stderr
    shown = [json.loads(hone("show", str(run), "--json").stdout) for run in (broken, whole)]
    assert shown[0]["in_flight"] == 0
    assert [shown[0][key] for key in ("steps", "trained", "masked")] == [
        shown[1][key] for key in ("steps", "trained", "masked")
    ]
    assert same_weights(broken, whole), "the run has other weights"


def same_weights(run: Path, other: Path) -> bool:
    """Compare up to rounding: rollouts end in another order, which changes the batches."""
    from transformers import AutoModelForCausalLM

    ends = [sorted((path / "checkpoints").glob("step-*"))[-1] for path in (run, other)]
    one, two = (AutoModelForCausalLM.from_pretrained(end) for end in ends)
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return all(torch.allclose(p, q, atol=1e-4, rtol=1e-3) for p, q in pairs)
