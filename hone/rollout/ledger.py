"""The ledger of a run: one SQLite row per rollout, from dispatch to disposition.

Invariant: `dispatched == trained + masked + dropped(reason) + in_flight`, and each rollout is dispatched
once, ends once and is disposed of once. A rollout belongs to the step that consumes it, and a step consumes a
group whole. Constraints and triggers in `schema.sql` enforce this on every code path.

Durability: WAL with synchronous=NORMAL. The operating system holds each transaction when it returns, so
kill -9 loses nothing; a power cut may lose the last transactions, but never part of one. Only `commit_step`
and `rollback` fsync (FULL), because a checkpoint relies on them.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.errors import LedgerError
from hone.rollout.lock import RunLock
from hone.utils.clock import Clock

FORMAT = 2  # of the schema; SQLite's user_version
SET_ASIDE = "set_aside"  # reason for dropping the rollouts of a group whose task is set aside


class Disposition(StrEnum):
    """How training used a rollout that ended."""

    TRAINED = "trained"
    MASKED = "masked"  # counts in the baseline, not in the loss
    DROPPED = "dropped"  # counts in neither, for a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposal:
    disposition: Disposition
    reason: str | None = None  # exactly when dropped


TRAINED = Disposal(disposition=Disposition.TRAINED)
MASKED = Disposal(disposition=Disposition.MASKED)


def dropped(reason: str) -> Disposal:
    return Disposal(disposition=Disposition.DROPPED, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row; a field is None until its event has happened."""

    rollout_id: str
    group_id: str
    index: int  # in the group
    position: int  # of the group in the order of tasks
    task_id: str
    sampled_version: int  # weights in use at dispatch
    dispatched_at: float  # Unix time, s
    ended_at: float | None
    outcome: Outcome | None
    reward: float | None
    directory: str | None
    disposition: Disposition | None
    reason: str | None
    step: int | None  # the training step that consumed it

    @property
    def staleness(self) -> int | None:
        """Steps between the weights that began it and the step that consumed it; None: not consumed."""
        return None if self.step is None else self.step - self.sampled_version


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A task that met only infrastructure faults, and is passed over for a while."""

    task_id: str
    group_id: str  # the group that it could not fill
    until: int  # position from which it is tried again
    reason: str
    at: float  # Unix time, s


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    dispatched: int
    trained: int
    masked: int
    dropped: Mapping[str, int]  # by reason
    in_flight: int  # running, or ended without a disposition
    steps: int  # committed


class Ledger:
    """Open with `Ledger.open` (one writer per run) or `Ledger.read` (any number of readers).

    Methods block for about 0.1 ms, `commit_step` for one fsync; all may be called from any thread.
    """

    def __init__(self, database: sqlite3.Connection, lock: RunLock | None, clock: Clock = time.time) -> None:
        self._db = database
        self._lock = lock
        self._clock = clock
        self._mutex = threading.Lock()

    @classmethod
    def open(cls, run_dir: Path, clock: Clock = time.time) -> Ledger:
        """Lock the run directory, open or create its ledger and end the rollouts of a killed process.

        `clock`: Unix time, s. Raises LedgerError when the ledger is in use, damaged, or of another version.
        """
        lock = RunLock(run_dir)
        path = run_dir / "ledger.sqlite"
        try:
            ledger = cls(connect(path), lock, clock)
            ledger._recover()
        except sqlite3.DatabaseError as error:
            lock.close()
            raise _explained(f"the ledger {path}", error) from error
        except LedgerError:
            lock.close()
            raise
        return ledger

    @classmethod
    def read(cls, run_dir: Path) -> Ledger:
        """Open read-only, also during the run. Raises LedgerError where there is no ledger."""
        path = run_dir / "ledger.sqlite"
        if not path.is_file():
            raise LedgerError(f"{run_dir} holds no run (no ledger.sqlite in it): pass a run directory")
        # without a log no process has it open, and SQLite need not make files beside it
        how = "mode=ro" if path.with_name("ledger.sqlite-wal").exists() else "immutable=1"
        try:
            database = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, check_same_thread=False)
            _require_format(database, path)
        except sqlite3.DatabaseError as error:
            raise _explained(f"the ledger {path}", error) from error
        return cls(database, None)

    def close(self) -> None:
        with self._mutex:
            self._db.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def bind(self, fingerprint: str) -> None:
        """Bind the run to a recipe. Raises LedgerError when it belongs to another one."""
        with self._transaction("binding the run to its recipe") as db:
            db.execute("INSERT OR IGNORE INTO meta VALUES ('fingerprint', ?)", (fingerprint,))
            (bound,) = db.execute("SELECT value FROM meta WHERE key = 'fingerprint'").fetchone()
            if bound != fingerprint:
                raise LedgerError(
                    "this run directory belongs to another recipe: a file that its settings name has "
                    "changed, or their defaults have; restore them, or choose another run_dir"
                )

    def dispatch(
        self, rollout_id: str, *, group_id: str, index: int, position: int, task_id: str, sampled_version: int
    ) -> None:
        """Add a rollout. Raises LedgerError when its id is taken or its group is consumed."""
        with self._transaction(f"dispatching {rollout_id}") as db:
            db.execute(
                "INSERT INTO rollouts "
                "(rollout_id, group_id, place, position, task_id, sampled_version, dispatched_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (rollout_id, group_id, index, position, task_id, sampled_version, self._clock()),
            )

    def end(
        self,
        rollout_id: str,
        outcome: Outcome,
        *,
        reward: float | None = None,
        directory: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Record the outcome of a rollout; drop an infrastructure fault for `reason` (default: its name).

        Raises LedgerError when the rollout is unknown or has ended already.
        """
        with self._transaction(f"ending {rollout_id}") as db:
            cursor = db.execute(
                "UPDATE rollouts SET outcome = ?, reward = ?, directory = ?, ended_at = ? "
                "WHERE rollout_id = ?",
                (outcome.value, reward, directory, self._clock(), rollout_id),
            )
            if cursor.rowcount == 0:
                raise LedgerError(f"ending {rollout_id}: it was never dispatched")
            if OUTCOME_RULES[outcome].fault is Fault.INFRASTRUCTURE:
                _dispose(db, rollout_id, dropped(reason or outcome.value), None)

    def drop(self, rollout_ids: Iterable[str], reason: str) -> None:
        """Dispose of ended rollouts that no step will consume."""
        with self._transaction("dropping rollouts") as db:
            for rollout_id in rollout_ids:
                _dispose(db, rollout_id, dropped(reason), None)

    def set_aside(
        self, task_id: str, rollout_ids: Iterable[str], *, group_id: str, until: int, reason: str
    ) -> None:
        """Set a task aside and drop the ended rollouts of its group, all or nothing."""
        with self._transaction(f"setting {task_id} aside") as db:
            for rollout_id in rollout_ids:
                _dispose(db, rollout_id, dropped(SET_ASIDE), None)
            values = (task_id, group_id, until, reason, self._clock())
            db.execute("INSERT INTO set_aside VALUES (?, ?, ?, ?, ?)", values)

    def tasks_set_aside(self) -> list[SetAside]:
        """Return every time that a task was set aside, in order."""
        columns = SetAside.__dataclass_fields__
        rows = self._query("SELECT * FROM set_aside ORDER BY rowid")
        return [SetAside(**dict(zip(columns, row, strict=True))) for row in rows]

    def commit_step(self, step: int, disposals: Mapping[str, Disposal]) -> None:
        """Commit a training step with the disposal of each rollout that it consumed, all or nothing.

        Raises LedgerError, and changes nothing, when a rollout of a consumed group is missing or still
        running, when a rollout is disposed of twice, or when the step is already committed.
        """
        with self._transaction(f"committing step {step}", durable=True) as db:
            for rollout_id, disposal in disposals.items():
                _dispose(db, rollout_id, disposal, step)
            undisposed = db.execute(_OPEN_OF_CONSUMED.format("rollout_id") + " LIMIT 3").fetchall()
            if undisposed:
                raise LedgerError(
                    f"committing step {step}: no disposal for {', '.join(row[0] for row in undisposed)}"
                )
            db.execute("INSERT INTO steps VALUES (?, ?)", (step, self._clock()))
        self._query("PRAGMA wal_checkpoint(TRUNCATE)")  # an open reader only delays it

    def rollback(self, step: int) -> None:
        """Undo every commit after `step` (-1: all), to resume from an older checkpoint.

        Their rollouts are open for reuse. The weights after version step + 1 are lost, so what they sampled
        is dropped as `rolled_back`.
        """
        with self._transaction(f"rolling back to step {step}", durable=True) as db:
            db.execute("DELETE FROM steps WHERE step > ?", (step,))
            db.execute(
                "UPDATE rollouts SET disposition = NULL, reason = NULL, step = NULL WHERE step > ?", (step,)
            )
            db.execute(
                "UPDATE rollouts SET disposition = 'dropped', reason = 'rolled_back' "
                "WHERE sampled_version > ? AND disposition IS NULL AND outcome IS NOT NULL",
                (step + 1,),
            )

    @property
    def last_step(self) -> int | None:
        """The last committed step; None before the first commit."""
        (row,) = self._query("SELECT max(step) FROM steps")
        return row[0]

    def entries(self, step: int | None = None) -> list[Entry]:
        """Return the rows that one step consumed, or all rows, in order of dispatch."""
        where, values = ("", ()) if step is None else ("WHERE step = ?", (step,))
        return [_entry(row) for row in self._query(f"SELECT * FROM rollouts {where} ORDER BY rowid", values)]  # noqa: S608 - constant text

    def balance(self) -> Balance:
        """Return the counts of the whole run. Raises LedgerError when they do not balance."""
        with self._mutex:
            self._db.execute("BEGIN")
            try:
                balance, faults = _audit(self._db)
            finally:
                self._db.execute("COMMIT")
        if faults:
            raise LedgerError(f"the ledger does not balance: {'; '.join(faults)}")
        return balance

    def _recover(self) -> None:
        """End the rollouts of a killed process; the lock guarantees that no other process runs them."""
        with self._transaction("recovering") as db:
            db.execute(
                "UPDATE rollouts SET outcome = ?, ended_at = ?, disposition = 'dropped', "
                "reason = 'interrupted' WHERE outcome IS NULL",
                (Outcome.CANCELLED.value, self._clock()),
            )

    def _query(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._mutex:
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self, doing: str, *, durable: bool = False) -> Generator[sqlite3.Connection]:
        with self._mutex:
            try:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise _explained(doing, error) from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


def connect(path: Path) -> sqlite3.Connection:
    """Open the database of a ledger, and create it if it is new; `:memory:` has no file."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")  # it would fsync; commit_step does so instead
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:  # new: one transaction, so the ledger is complete or absent
        infrastructure = [o for o, rule in OUTCOME_RULES.items() if rule.fault is Fault.INFRASTRUCTURE]
        schema = Path(__file__).with_name("schema.sql").read_text()
        schema = schema.replace("@OUTCOMES", _quoted(Outcome))
        schema = schema.replace("@INFRASTRUCTURE", _quoted(infrastructure))
        database.executescript(f"BEGIN IMMEDIATE;\n{schema}\nPRAGMA user_version = {FORMAT};\nCOMMIT;")
    _require_format(database, path)
    return database


def _quoted(outcomes: Iterable[Outcome]) -> str:
    return ", ".join(f"'{outcome.value}'" for outcome in outcomes)


def _require_format(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        known = f"{path} has format {version}, and this version of Hone reads format {FORMAT}"
        raise LedgerError(f"{known}: continue with the version that wrote it, or choose another run_dir")


def _dispose(db: sqlite3.Connection, rollout_id: str, disposal: Disposal, step: int | None) -> None:
    cursor = db.execute(
        "UPDATE rollouts SET disposition = ?, reason = ?, step = ? WHERE rollout_id = ?",
        (disposal.disposition.value, disposal.reason, step, rollout_id),
    )
    if cursor.rowcount == 0:
        raise LedgerError(f"disposing of {rollout_id}: it was never dispatched")


def _entry(row: tuple[Any, ...]) -> Entry:
    fields: dict[str, Any] = dict(zip(Entry.__dataclass_fields__, row, strict=True))
    if fields["outcome"] is not None:
        fields["outcome"] = Outcome(fields["outcome"])
    if fields["disposition"] is not None:
        fields["disposition"] = Disposition(fields["disposition"])
    return Entry(**fields)


def _audit(db: sqlite3.Connection) -> tuple[Balance, list[str]]:
    (dispatched,) = db.execute("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'dispatched'").fetchone()
    (steps,) = db.execute("SELECT count(*) FROM steps").fetchone()
    counts = db.execute("SELECT disposition, reason, count(*) FROM rollouts GROUP BY 1, 2").fetchall()
    by_disposition = {(disposition, reason): number for disposition, reason, number in counts}
    balance = Balance(
        dispatched=dispatched,
        trained=by_disposition.pop(("trained", None), 0),
        masked=by_disposition.pop(("masked", None), 0),
        in_flight=by_disposition.pop((None, None), 0),
        dropped={reason: number for (_, reason), number in by_disposition.items()},
        steps=steps,
    )
    faults: list[str] = []
    accounted = balance.trained + balance.masked + balance.in_flight + sum(balance.dropped.values())
    if accounted != dispatched:
        faults.append(f"{dispatched} rollouts were dispatched and {accounted} are accounted for")
    for fault, query in _FAULTS.items():
        (number,) = db.execute(query).fetchone()
        if number:
            faults.append(f"{number} {fault}")
    return balance, faults


_OPEN_OF_CONSUMED = (
    "SELECT {} FROM rollouts WHERE disposition IS NULL AND EXISTS "
    "(SELECT 1 FROM rollouts AS other WHERE other.group_id = rollouts.group_id AND other.step IS NOT NULL)"
)
_FAULTS = {
    "rollouts were consumed by a step that is not committed": (
        "SELECT count(*) FROM rollouts WHERE step IS NOT NULL AND step NOT IN (SELECT step FROM steps)"
    ),
    "rollouts of a consumed group are open": _OPEN_OF_CONSUMED.format("count(*)"),
}


def _explained(doing: str, error: sqlite3.DatabaseError) -> LedgerError:
    if "disk is full" in str(error):
        return LedgerError(f"{doing}: the disk is full; free some space and run the same command again")
    if "malformed" in str(error) or "not a database" in str(error):
        return LedgerError(f"{doing}: the file is damaged ({error}); choose another run directory")
    return LedgerError(f"{doing}: {error}")
