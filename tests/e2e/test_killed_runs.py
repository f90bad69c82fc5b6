"""kill -9 at any moment, then the same command: it finishes, and the ledger balances."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hone.rollout.ledger import Disposition, Ledger
from tests.e2e.small_run import RECIPE, REPOSITORY, TIMEOUT_S, hone, sets

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]  # the first one waits for the quickstart, too

HARDEST = "between_checkpoint_and_commit"
MOMENTS = ("rollout", "optimizer_step", "checkpoint_writing")


def alone(run_dir: Path, finished: Path) -> list[str]:
    """Each reply is computed by itself, from its first token: company in a batch, or a beginning out of a
    cache, changes the last bits of logits, and so, where two tokens are almost a tie, which one is drawn."""
    return sets(run_dir, model__path=finished / "start", engine__max_batch=1, engine__cached_sessions=0)


@pytest.fixture(scope="module")
def undisturbed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nobody killed."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    hone("train", str(RECIPE), *alone(run_dir, finished))
    return run_dir


@pytest.mark.parametrize(
    "moment", [HARDEST, *(pytest.param(moment, marks=pytest.mark.full) for moment in MOMENTS)]
)
def test_a_killed_run_goes_on_where_it_was(
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
    assert shown["trained"] == 3 * 4 * 4
    with Ledger.read(tmp_path / "run") as ledger:
        trained = {e.rollout_id for e in ledger.entries() if e.disposition is Disposition.TRAINED}
    assert finished_before <= trained, "a finished rollout was thrown away"
    if moment != "rollout":  # an interrupted rollout is sampled again; finished ones give the same weights
        assert same_weights(tmp_path / "run", undisturbed), "the run did not go on as if nothing had happened"


def same_weights(run: Path, other: Path) -> bool:
    """To rounding: rollouts end in another order, and batches are cut accordingly."""
    from transformers import AutoModelForCausalLM

    ends = [sorted((path / "checkpoints").glob("step-*"))[-1] for path in (run, other)]
    one, two = (AutoModelForCausalLM.from_pretrained(end) for end in ends)
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return all(torch.allclose(p, q, atol=1e-4, rtol=1e-3) for p, q in pairs)
