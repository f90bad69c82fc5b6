from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hone.rollout.errors import LedgerError
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from tests.services.process import control_groups
from tests.waiting import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.full]
REPOSITORY = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.chaos.dispatcher_process"]


def processes(owner: str) -> list[int]:
    """Those with the name of a sandbox provider's instance on their command line."""
    everything = psutil.process_iter(["cmdline"])
    return [process.pid for process in everything if owner in " ".join(process.info["cmdline"] or [])]


def mounts(root: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]


def ended_and_running(root: Path) -> tuple[int, int]:
    try:
        with Ledger.read(root / "run") as ledger:
            entries = ledger.entries()
    except LedgerError:  # not made yet
        return 0, 0
    ended = sum(entry.outcome is not None for entry in entries)
    return ended, len(entries) - ended


def wait_until_running(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    wait_until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, "the command ended before it could be killed"


@pytest.mark.sandbox
def test_command_finishes_the_step_after_kill_9_and_leaves_nothing(tmp_path: Path):
    process = subprocess.Popen([*PROGRAM, str(tmp_path), "2"], cwd=REPOSITORY)
    wait_until_running(process, lambda: ended_and_running(tmp_path) == (2, 3))
    (owner,) = (path.name for path in (tmp_path / "state").iterdir())
    wait_until_running(process, lambda: len(processes(owner)) > 3)  # so that something can be left
    process.kill()
    process.wait()

    done = subprocess.run([*PROGRAM, str(tmp_path)], cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    with Ledger.open(tmp_path / "run") as ledger:
        balance = ledger.balance()
        assert (balance.dispatched, balance.trained, balance.in_flight) == (9, 6, 0)
        assert balance.dropped == {"interrupted": 3}
        trained = [entry for entry in ledger.entries() if entry.disposition == "trained"]
        first_run = sorted(entry.dispatched_at for entry in ledger.entries())[:5]
        assert (
            sum(entry.dispatched_at in first_run for entry in trained) == 2
        )  # the finished ones were reused
        store = Store(tmp_path / "run" / "rollouts")
        assert {path.name for path in store.root.iterdir()} == {entry.directory for entry in trained}
        for entry in trained:
            assert store.load(entry.directory or "").rollout_id == entry.rollout_id

    assert list((tmp_path / "state").iterdir()) == []
    assert mounts(tmp_path) == []
    assert processes(owner) == []
    assert control_groups(owner) == []
