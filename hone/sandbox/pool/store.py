"""The durable state of the pool: one SQLite file, one transaction at a time, many requests in each.

It holds what a restart cannot learn from the nodes: active leases (with the capabilities of their sandboxes),
tombstones of leases that ended lately, and the nodes. A queued or starting lease needs no row: its client
asks again, and a sandbox whose lease is not in the store is destroyed on its node. `synchronous=FULL`: a
transaction is on the disk before its requests get their replies; later requests share the next one.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Json

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.remote.wire import CreateReply, NodeRequest, SpecBody, Wire

SCHEMA_VERSION = 1
_BATCH = 1000  # statements of one transaction
_GENERATIONS = 1_000_000  # that one run of the pool may use; a restart continues after them
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (id TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tombstones (id TEXT PRIMARY KEY, how TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (url TEXT PRIMARY KEY, max_sandboxes INTEGER NOT NULL, draining INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE totals (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
"""
_COUNT = "INSERT INTO totals VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1"

Statement = tuple[str, Sequence[object]]


class StoredLease(Wire):
    """An active lease."""

    id: str
    generation: int
    owner: str
    spec: Json[SpecBody]
    ttl_s: float
    created: float
    node_url: str
    grant: Json[CreateReply]
    owner_key: str = ""  # SHA-256 of the owner's key; "" without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The state that an earlier run left."""

    leases: list[StoredLease]
    tombstones: dict[str, str]  # lease id -> how it ended
    nodes: list[NodeRequest]


class Store:
    """Open with `open`; every method that writes returns when its transaction is on the disk.

    Attributes:
        pool_id: distinguishes the sandboxes of this pool from those of others.
        totals: number of events (`allocated`, `closed`, ...) since the store was made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.totals: Counter[str] = Counter()
        self._waiting: list[tuple[Sequence[Statement], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> Contents:
        """Open or create the file. Raises ProviderUnavailable when it is not a store, or is in use."""
        try:
            return await asyncio.to_thread(self._load)
        except (sqlite3.Error, OSError) as error:
            raise ProviderUnavailable(
                f"the store {self._path} cannot be opened: {error}", retryable=False
            ) from error

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)  # it holds the capabilities of sandboxes
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=2)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # one pool to a store
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
            )
        elif version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"its schema has version {version}, not {SCHEMA_VERSION}")
        return connection

    def _load(self) -> Contents:
        self._connection = self._connect()
        read = self._connection.execute
        read("INSERT OR IGNORE INTO meta VALUES ('pool_id', ?)", [secrets.token_hex(6)])
        read("INSERT OR IGNORE INTO meta VALUES ('generation', '0')")
        read("UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE name = 'generation'", [_GENERATIONS])
        meta = dict(read("SELECT name, value FROM meta").fetchall())
        self.pool_id: str = meta["pool_id"]
        self._generation = int(meta["generation"]) - _GENERATIONS
        self.totals.update(dict(read("SELECT name, n FROM totals").fetchall()))
        return Contents(
            leases=[StoredLease.model_validate_json(row) for (row,) in read("SELECT row FROM leases")],
            tombstones=dict(read("SELECT id, how FROM tombstones").fetchall()),
            nodes=[
                NodeRequest(url=url, max_sandboxes=most, state="draining" if draining else "active")
                for url, most, draining in read("SELECT url, max_sandboxes, draining FROM nodes")
            ],
        )

    def next_generation(self) -> int:
        """Return a number greater than all that this store ever returned, also across restarts."""
        self._generation += 1
        return self._generation

    async def close(self) -> None:
        """Finish the writes that were asked for, and close the file."""
        if self._writer is not None:
            await self._writer
        if self._connection is not None:
            await asyncio.to_thread(self._connection.close)
            self._connection = None

    # --- writes

    async def activate(self, lease: StoredLease) -> None:
        row = (lease.id, lease.model_dump_json(round_trip=True))
        await self._commit(("INSERT OR REPLACE INTO leases VALUES (?, ?)", row), counted="allocated")

    async def end(self, lease_id: str, how: str, *, counted: bool) -> None:
        """Set the tombstone of a lease; `counted` when it was activated before."""
        await self._commit(
            ("DELETE FROM leases WHERE id = ?", (lease_id,)),
            ("INSERT OR IGNORE INTO tombstones VALUES (?, ?)", (lease_id, how)),
            counted=how if counted else "",
        )

    async def count_refusal(self) -> None:
        await self._commit(counted="refused")

    async def prune(self, tombstones: Iterable[str]) -> None:
        """Delete tombstones."""
        deletes = [("DELETE FROM tombstones WHERE id = ?", (lease_id,)) for lease_id in tombstones]
        for first in range(0, len(deletes), _BATCH):
            await self._commit(*deletes[first : first + _BATCH])

    async def put_node(self, node: NodeRequest) -> None:
        row = (node.url, node.max_sandboxes, node.state == "draining")
        await self._commit(("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)", row))

    async def remove_node(self, url: str) -> None:
        await self._commit(("DELETE FROM nodes WHERE url = ?", (url,)))

    async def _commit(self, *statements: Statement, counted: str = "") -> None:
        """Write statements, and count an event, in the next transaction, and wait for it."""
        done = asyncio.get_running_loop().create_future()
        if counted:
            statements = (*statements, (_COUNT, (counted,)))
        self._waiting.append((statements, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        try:
            await done
        except sqlite3.Error as error:
            raise ProviderUnavailable(
                f"the pool's store cannot be written: {error}", retryable=True
            ) from error
        if counted:
            self.totals[counted] += 1

    async def _write(self) -> None:
        """Run one transaction after the other until no statements wait."""
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            statements = [statement for group, _ in batch for statement in group]
            error = await asyncio.to_thread(self._transact, statements)
            for _, done in batch:
                if done.done():  # its request was cancelled; its statements are written all the same
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    def _transact(self, statements: Sequence[Statement]) -> sqlite3.Error | None:
        connection = self._connection
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return error
        return None
