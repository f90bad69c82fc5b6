"""A pool server that kills itself at the n-th transaction of its store: before it, or right after it.

python -m tests.sandbox.pool.dying STORE NODE_URL LISTENER N before|after    (LISTENER: an inherited socket)
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from hone.sandbox.client.api import NodeClient
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.server import make_pool_app
from hone.sandbox.pool.store import Statement, Store
from tests.sandbox.pool.simulated import FAST, listening


class DyingStore(Store):
    """Counts transactions that write leases."""

    left = int(sys.argv[4])
    moment = sys.argv[5]

    def _transact(self, statements: Sequence[Statement]) -> sqlite3.Error | None:
        if not any("leases" in sql or "tombstones" in sql for sql, _ in statements):
            return super()._transact(statements)
        self.left -= 1
        if self.left == 0 and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        error = super()._transact(statements)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return error


async def main() -> None:
    store, node_url = Path(sys.argv[1]), sys.argv[2]
    listener = socket.socket(fileno=int(sys.argv[3]))
    async with (
        aiohttp.ClientSession() as session,
        Pool(
            store,
            lambda url: NodeClient(session, url, "n"),
            nodes=[node_url],
            timing=FAST,
            open_store=DyingStore,
        ) as pool,
        listening(make_pool_app(pool, session, token="t", node_token="n"), listener) as url,
    ):
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
