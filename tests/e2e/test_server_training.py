"""Training through a real engine server of the run: it is killed, then the run is, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hone.rollout.ledger import Ledger
from hone.train.metrics import read_metrics
from tests.e2e.small_run import HONE, RECIPE, REPOSITORY, ROLLOUTS_A_STEP, sets
from tests.policy.engines.real import KINDS, PYTHON
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]


def wait_until_running(run: subprocess.Popen[str], condition: Callable[[], bool], expected: str) -> None:
    wait_until(lambda: condition() or run.poll() is not None, f"never came: {expected}", limit_s=600)
    assert run.poll() is None, f"the run ended before {expected}: {run.communicate()[1]}"


def server(run_dir: Path) -> list[psutil.Process]:
    """The server of a run and everything below it."""
    facts = json.loads((run_dir / "engine" / "server-0.json").read_text())
    return psutil.Process(facts["guard"]).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[int]:
    _, left = psutil.wait_procs(processes, timeout=30)
    return [process.pid for process in left if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_survives_its_server_and_itself_being_killed(
    finished: Path, tmp_path: Path, kind: str
) -> None:
    run_dir = tmp_path / "run"
    wanted = sets(
        run_dir,
        model__path=finished / "start",
        engine__kind=kind,
        engine__python=PYTHON[kind],
        train__steps=4,
    )
    command = [HONE, "train", str(RECIPE), *wanted]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def steps() -> int:
        return len(read_metrics(run_dir)) if (run_dir / "metrics.jsonl").is_file() else 0

    first = start()
    try:
        wait_until_running(first, lambda: steps() >= 1, "the first step")
        doomed = server(run_dir)
        doomed[0].kill()
        wait_until_running(first, lambda: steps() >= 2, "a step with another server")
        assert alive(doomed) == []
        replaced = server(run_dir)
        assert not set(replaced) & set(doomed)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert alive(replaced) == []
    finally:
        first.kill()
        first.wait()

    second = start()
    try:
        _, errors = second.communicate(timeout=900)
    finally:
        second.kill()
        second.wait()
    assert second.returncode == 0, errors
    records = read_metrics(run_dir)
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    gaps = [
        record["logp_gap_max"] for record in records if "logp_gap_max" in record
    ]  # of steps with a signal
    assert gaps
    assert max(gaps) <= 1e-3
    with Ledger.read(run_dir) as ledger:
        balance = ledger.balance()
    assert (balance.trained + balance.masked, balance.in_flight, balance.steps) == (4 * ROLLOUTS_A_STEP, 0, 4)
    assert balance.dispatched == balance.trained + balance.masked + sum(balance.dropped.values())
    assert [path.name for path in (run_dir / "weights").iterdir()] == ["v4"]
    assert not (run_dir / "engine" / "server-0.json").exists()
