from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.errors import LedgerError
from hone.rollout.ledger import MASKED, TRAINED, Disposition, Ledger, dropped

OUTCOMES = list(Outcome)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would be flushed at every commit
INFRASTRUCTURE = {o for o, rule in OUTCOME_RULES.items() if rule.fault is Fault.INFRASTRUCTURE}


def dispatch(ledger: Ledger, rollout_id: str, step: int = 0) -> None:
    ledger.dispatch(
        rollout_id, group_id=f"g{step}", index=0, position=step, task_id="t", sampled_version=step
    )


def end(ledger: Ledger, rollout_id: str, outcome: Outcome = Outcome.RESOLVED) -> None:
    if outcome in INFRASTRUCTURE:
        ledger.end(rollout_id, outcome)
    else:
        ledger.end(rollout_id, outcome, reward=1.0, directory=f"d-{rollout_id}")


def test_every_rollout_is_counted_from_dispatch_to_training(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        for i in range(5):
            dispatch(ledger, f"r{i}")
        end(ledger, "r0")
        end(ledger, "r1", Outcome.TURN_LIMIT)
        end(ledger, "r2", Outcome.ENGINE_ERROR)
        end(ledger, "r3")
        assert (ledger.balance().in_flight, ledger.balance().dropped) == (4, {"engine_error": 1})
        end(ledger, "r4")
        ledger.commit_step(0, {"r0": TRAINED, "r1": MASKED, "r3": dropped("constant"), "r4": TRAINED})
        balance = ledger.balance()
    assert (balance.dispatched, balance.trained, balance.masked) == (5, 2, 1)
    assert balance.dropped == {"engine_error": 1, "constant": 1}
    assert (balance.in_flight, balance.steps) == (0, 1)


def test_rollout_is_dispatched_once_and_ends_once(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "r")
        with pytest.raises(LedgerError, match="UNIQUE"):
            dispatch(ledger, "r")
        end(ledger, "r")
        with pytest.raises(LedgerError, match="already ended"):
            end(ledger, "r", Outcome.UNRESOLVED)
        with pytest.raises(LedgerError, match="never dispatched"):
            end(ledger, "other")
        assert [e.outcome for e in ledger.entries()] == [Outcome.RESOLVED]


def test_rollout_is_disposed_of_once_after_it_ended(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "running")
        with pytest.raises(LedgerError):
            ledger.drop(["running"], "stale")
        end(ledger, "running")
        ledger.drop(["running"], "stale")
        with pytest.raises(LedgerError, match="already been disposed"):
            ledger.commit_step(0, {"running": TRAINED})
        dispatch(ledger, "fault")
        end(ledger, "fault", Outcome.SANDBOX_ERROR)
        with pytest.raises(LedgerError):
            ledger.commit_step(0, {"fault": TRAINED})
        assert ledger.balance().dropped == {"stale": 1, "sandbox_error": 1}


def test_step_commit_is_all_or_nothing(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        for name in ("a", "b"):
            dispatch(ledger, name)
            end(ledger, name)
        with pytest.raises(LedgerError, match="no disposal for b"):
            ledger.commit_step(0, {"a": TRAINED})
        with pytest.raises(LedgerError, match="never dispatched"):
            ledger.commit_step(0, {"a": TRAINED, "b": TRAINED, "c": TRAINED})
        assert ledger.last_step is None
        assert ledger.balance().in_flight == 2
        ledger.commit_step(0, {"a": TRAINED, "b": TRAINED})
        with pytest.raises(LedgerError):
            ledger.commit_step(0, {})
        with pytest.raises(LedgerError, match="consumed its group"):
            dispatch(ledger, "late", step=0)


def test_step_may_consume_groups_of_older_weights_and_leave_others_open(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        for version in range(3):
            dispatch(ledger, f"r{version}", version)
            end(ledger, f"r{version}")
        ledger.commit_step(1, {"r0": TRAINED})
        with pytest.raises(LedgerError, match="sampled_version <= step"):
            ledger.commit_step(0, {"r2": TRAINED})  # sampled by weights that step 0 did not have
        (consumed,) = ledger.entries(1)
        assert (consumed.rollout_id, consumed.staleness) == ("r0", 1)
        assert [entry.staleness for entry in ledger.entries()] == [1, None, None]
        assert ledger.balance().in_flight == 2


def test_task_is_set_aside_with_the_rollouts_of_its_group(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "r")
        end(ledger, "r")
        ledger.set_aside("t", ["r"], group_id="g0", until=12, reason="no such image")
        (aside,) = ledger.tasks_set_aside()
        assert (aside.task_id, aside.group_id, aside.until, aside.reason) == ("t", "g0", 12, "no such image")
        assert ledger.balance().dropped == {"set_aside": 1}
        with pytest.raises(LedgerError):
            ledger.set_aside("other", ["unknown"], group_id="g1", until=12, reason="")
        assert len(ledger.tasks_set_aside()) == 1


def test_recovery_cancels_running_and_keeps_finished_rollouts(tmp_path: Path):
    ledger = Ledger.open(tmp_path)
    for name in ("finished", "running"):
        dispatch(ledger, name)
    end(ledger, "finished")
    ledger.close()
    with Ledger.open(tmp_path) as ledger:
        finished, running = ledger.entries()
        assert (finished.outcome, finished.disposition) == (Outcome.RESOLVED, None)
        assert (running.outcome, running.disposition) == (Outcome.CANCELLED, Disposition.DROPPED)
        assert running.reason == "interrupted"
        assert ledger.balance().in_flight == 1


def test_kill_minus_9_loses_no_row(tmp_path: Path):
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from hone.rollout.ledger import Ledger\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "for i in range(50):\n"
        "    ledger.dispatch(f'r{i}', group_id='g', index=i, position=0, task_id='t', sampled_version=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with Ledger.open(tmp_path) as ledger:
        assert ledger.balance().dropped == {"interrupted": 50}


def test_rollback_reopens_next_step_and_drops_later_ones(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        for step in range(4):
            dispatch(ledger, f"r{step}", step)
            end(ledger, f"r{step}")
            ledger.commit_step(step, {f"r{step}": TRAINED})
        ledger.rollback(1)
        assert ledger.last_step == 1
        assert [(e.disposition, e.reason) for e in ledger.entries()] == [
            (Disposition.TRAINED, None),
            (Disposition.TRAINED, None),
            (None, None),
            (Disposition.DROPPED, "rolled_back"),
        ]
        ledger.commit_step(2, {"r2": MASKED})
        assert ledger.balance().in_flight == 0


def test_second_process_is_refused_with_pid_of_the_first(tmp_path: Path):
    with Ledger.open(tmp_path):
        code = (
            "import sys; from pathlib import Path; from hone.rollout.ledger import Ledger\n"
            "Ledger.open(Path(sys.argv[1]))"
        )
        second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
        assert second.returncode == 1
        assert f"in use by process {os.getpid()}" in second.stderr.decode()
    Ledger.open(tmp_path).close()


def test_run_directory_is_bound_to_one_recipe(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        ledger.bind("one")
        ledger.bind("one")
    with Ledger.open(tmp_path) as ledger, pytest.raises(LedgerError, match="another recipe"):
        ledger.bind("two")


def test_reader_sees_a_running_run_and_cannot_write(tmp_path: Path):
    with pytest.raises(LedgerError, match="holds no run"):
        Ledger.read(tmp_path)
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "r")
        with Ledger.read(tmp_path) as reader:
            assert reader.balance().in_flight == 1
            with pytest.raises(LedgerError):
                end(reader, "r")


def test_error_names_a_file_that_is_no_ledger(tmp_path: Path):
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.open(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    sqlite3.connect(other / "ledger.sqlite").execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="has format 99, and this version of Hone reads format"):
        Ledger.open(other)


def test_lost_row_unbalances_the_ledger(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "r")
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="never deleted"):
        database.execute("DELETE FROM rollouts")
    database.execute("DROP TRIGGER never_deleted")
    database.execute("DELETE FROM rollouts")
    database.commit()
    database.close()
    with (
        Ledger.open(tmp_path) as ledger,
        pytest.raises(LedgerError, match="1 rollouts were dispatched and 0"),
    ):
        ledger.balance()


def test_surplus_row_unbalances_the_ledger(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        dispatch(ledger, "r")
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute("UPDATE meta SET value = '0' WHERE key = 'dispatched'")
    database.commit()
    database.close()
    with (
        Ledger.open(tmp_path) as ledger,
        pytest.raises(LedgerError, match="0 rollouts were dispatched and 1 are"),
    ):
        ledger.balance()


_OPEN = "1 rollouts of a consumed group are open"
_EARLY = "1 rollouts were consumed by a step that is not committed"


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (
            "UPDATE rollouts SET disposition = 'trained', step = 0 WHERE rollout_id = 'r'",
            f"{_EARLY}; {_OPEN}",
        ),
        ("UPDATE rollouts SET disposition = 'trained', step = 0", f"2{_EARLY[1:]}"),
    ],
)
def test_row_that_contradicts_the_steps_unbalances_the_ledger(tmp_path: Path, damage: str, fault: str):
    with Ledger.open(tmp_path) as ledger:
        for name in ("r", "other"):
            dispatch(ledger, name)
            end(ledger, name)
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute(damage)
    database.commit()
    database.close()
    with Ledger.open(tmp_path) as ledger, pytest.raises(LedgerError, match=f"balance: {fault}$"):
        ledger.balance()


def test_commit_refuses_a_part_of_a_group(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        for name in ("one", "running"):
            dispatch(ledger, name)
        end(ledger, "one")
        with pytest.raises(LedgerError, match="no disposal for running"):
            ledger.commit_step(0, {"one": TRAINED})
        end(ledger, "running")
        ledger.commit_step(0, {"one": TRAINED, "running": MASKED})


def test_only_commits_and_rollbacks_flush_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    levels: list[int] = []  # of each COMMIT: 1 is NORMAL, 2 is FULL

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == "COMMIT":
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Recording))
    with Ledger.open(tmp_path) as ledger:
        levels.clear()
        dispatch(ledger, "r")
        end(ledger, "r")
        ledger.commit_step(0, {"r": TRAINED})
        ledger.rollback(-1)
    assert levels == [1, 1, 2, 2]


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of dispatches, endings, commits, rollbacks and crashes, beside a model in plain Python."""

    running, ended = Bundle("running"), Bundle("ended")

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.ledger = Ledger.open(Path(self.directory.name))
        self.step = 0  # the step being collected
        self.known: dict[str, tuple[str, int]] = {}  # id -> (state, version at dispatch)

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    @rule(target=running)
    def dispatch(self) -> str:
        rollout_id = f"r{len(self.known)}"
        self.ledger.dispatch(
            rollout_id, group_id=rollout_id, index=0, position=0, task_id="t", sampled_version=self.step
        )
        self.known[rollout_id] = ("running", self.step)
        return rollout_id

    @rule(target=ended, rollout_id=consumes(running), outcome=st.sampled_from(OUTCOMES))
    def end(self, rollout_id: str, outcome: Outcome):
        state, step = self.known[rollout_id]
        if state != "running":  # a crash ended it
            with pytest.raises(LedgerError):
                end(self.ledger, rollout_id, outcome)
            return multiple()
        end(self.ledger, rollout_id, outcome)
        fault = outcome in INFRASTRUCTURE
        self.known[rollout_id] = (outcome.value if fault else "ended", step)
        return rollout_id

    @rule(rollout_id=ended, reason=st.sampled_from(["constant", "stale"]))
    def drop(self, rollout_id: str, reason: str) -> None:
        state, step = self.known[rollout_id]
        if state == "ended":
            self.ledger.drop([rollout_id], reason)
            self.known[rollout_id] = (reason, step)
        else:
            with pytest.raises(LedgerError):
                self.ledger.drop([rollout_id], reason)

    @rule(rollout_id=ended)
    def end_again(self, rollout_id: str) -> None:
        with pytest.raises(LedgerError):
            end(self.ledger, rollout_id)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ended = [i for i, (state, _) in self.known.items() if state == "ended"]
        open_ = [i for i in ended if data.draw(st.booleans(), label=f"{i} is consumed")]
        ways = {"trained": TRAINED, "masked": MASKED, "no_tokens": dropped("no_tokens")}
        chosen = {i: data.draw(st.sampled_from(sorted(ways)), label=i) for i in open_}
        disposals = {i: ways[way] for i, way in chosen.items()}
        self.ledger.commit_step(self.step, disposals)
        for i, way in chosen.items():
            self.known[i] = (f"{way}@{self.step}", self.known[i][1])
        self.step += 1

    @rule(back=st.integers(0, 2))
    def roll_back(self, back: int) -> None:
        last = max(self.step - 1 - back, -1)
        if any(state == "running" for state, _ in self.known.values()):
            return  # a step is taken back when a run resumes: nothing is running then
        self.ledger.rollback(last)
        for i, (state, step) in self.known.items():
            committed = "@" in state and int(state.split("@")[1]) > last
            if committed or state == "ended":
                self.known[i] = ("ended" if step <= last + 1 else "rolled_back", step)
        self.step = last + 1

    @rule()
    def crash(self) -> None:
        # the files as a killed process leaves them
        killed, directory = self.directory, tempfile.TemporaryDirectory(dir=MEMORY)
        shutil.copytree(killed.name, directory.name, dirs_exist_ok=True)
        self.ledger.close()
        killed.cleanup()
        self.directory, self.ledger = directory, Ledger.open(Path(directory.name))
        for i, (state, step) in self.known.items():
            if state == "running":
                self.known[i] = ("interrupted", step)

    @invariant()
    def balances(self) -> None:
        if not hasattr(self, "ledger"):
            return
        states = [state.split("@")[0] for state, _ in self.known.values()]
        balance = self.ledger.balance()
        assert balance.dispatched == len(states)
        assert balance.trained == states.count("trained")
        assert balance.masked == states.count("masked")
        assert balance.in_flight == states.count("running") + states.count("ended")
        reasons = [s for s in states if s not in ("trained", "masked", "running", "ended")]
        assert balance.dropped == {reason: reasons.count(reason) for reason in set(reasons)}
        assert balance.steps == self.step


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
