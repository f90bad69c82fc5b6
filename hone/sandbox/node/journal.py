"""Replies by idempotency key: a repeated request runs once.

A repeat waits for the first reply and returns it. Failures are not kept, because they changed nothing.
Finished replies are deleted, the oldest first, beyond a number and a total size.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from hone.sandbox.contract import SandboxError
from hone.utils.concurrency import cancel_all

Name = tuple[str, str]  # scope of the key (a sandbox's id, or "" for the server), and the key
KEY_MAX = 128  # characters


@dataclass(frozen=True, slots=True)
class _Entry:
    request: bytes  # digest
    reply: asyncio.Future[bytes]


class Journal:
    def __init__(self, *, replies_max: int, bytes_max: int) -> None:
        self._replies_max, self._bytes_max = replies_max, bytes_max
        self._entries: dict[Name, _Entry] = {}
        self._finished: OrderedDict[Name, int] = OrderedDict()  # bytes of each, oldest first
        self._bytes = 0

    async def once(
        self, name: Name, request: bytes, operation: Callable[[], Coroutine[None, None, bytes]]
    ) -> bytes:
        """Return the reply to `request` under this key. The operation continues when the caller is cancelled.

        Raises what the operation raises, ValueError when the key was used for another request, and
        SandboxError when `cancel` was called.
        """
        if not 0 < len(name[1]) <= KEY_MAX:
            raise ValueError(f"an idempotency key has 1 to {KEY_MAX} characters")
        digest = hashlib.blake2b(request, digest_size=16).digest()
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(digest, asyncio.create_task(operation()))
            entry.reply.add_done_callback(lambda _: self._finish(name))
        if entry.request != digest and not entry.reply.cancelled():
            raise ValueError("the idempotency key was used for another request")
        await asyncio.wait({entry.reply})
        if entry.reply.cancelled():
            raise SandboxError("the request was cancelled by its idempotency key")
        return entry.reply.result()

    async def cancel(self, name: Name) -> bytes | None:
        """Cancel the operation under a key, also before it arrives; return its reply if it had finished."""
        entry = self._entries.get(name)
        if entry is None:
            never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            never.cancel()
            self._entries[name] = _Entry(b"", never)
            self._finish(name)
            return None
        entry.reply.cancel()
        await asyncio.wait({entry.reply})
        if entry.reply.cancelled() or entry.reply.exception() is not None:
            return None
        return entry.reply.result()

    async def close(self) -> None:
        """Cancel all running operations and wait for them."""
        await cancel_all([entry.reply for entry in self._entries.values() if not entry.reply.done()])

    def _finish(self, name: Name) -> None:
        reply = self._entries[name].reply
        if not reply.cancelled() and reply.exception() is not None:
            del self._entries[name]
            return
        self._finished[name] = 0 if reply.cancelled() else len(reply.result())
        self._bytes += self._finished[name]
        while len(self._finished) > self._replies_max or self._bytes > self._bytes_max:
            oldest, size = self._finished.popitem(last=False)
            self._bytes -= size
            del self._entries[oldest]
