"""Wrappers of an agent's sandbox and chat that measure time and enforce the reply timeout."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hone.policy.engine import EngineError
from hone.policy.reply import CallKind, Chat, Reply, ToolSpec
from hone.sandbox.contract import Command, ExecResult, Sandbox
from hone.types import Call, Message, TokenTree
from hone.utils.busy import BusyMeter


class Conversation(Chat, Protocol):
    """The chat of an episode, for example `hone.policy.chat.Chat`."""

    @property
    def forks(self) -> Mapping[Any, int]:
        """Counts of rewritten histories, by reason."""
        ...

    @property
    def calls(self) -> Sequence[Call]: ...

    async def close(self) -> None: ...


class NoChat:
    """The conversation of agents without a policy."""

    def __init__(self) -> None:
        self.tree = TokenTree()
        self.forks = Counter[str]()
        self.calls: list[Call] = []
        self.max_prompt_tokens = sys.maxsize

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return 0

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        raise EngineError("this run has no engine: choose a scripted agent, or pass a model")

    async def close(self) -> None:
        return None


class MeteredChat:
    """Adds up the seconds of waiting for replies; a reply after `timeout_s` raises EngineError.

    The agent's time limit is paused during a reply and fires after it, so that a silent engine is never
    counted as a slow policy. With several replies at a time, it is paused until the last of those requested
    before the limit; later requests do not pause it.
    """

    def __init__(
        self,
        chat: Conversation,
        timings: dict[str, float],
        timeout_s: float,
        time_limit: asyncio.Timeout,
        busy: BusyMeter,
    ) -> None:
        """`busy`: the engine's."""
        self.tree = chat.tree
        self._chat = chat
        self._timings = timings
        self._timeout_s = timeout_s
        self._time_limit = time_limit
        self._busy = busy
        self._deadline = time_limit.when()
        self._awaited = 0  # running replies that pause the time limit
        self._since = 0.0  # when the first of them was requested, by time.monotonic()

    @property
    def max_prompt_tokens(self) -> int:
        return self._chat.max_prompt_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return self._chat.measure(messages, tools=tools)

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        reply_timeout = asyncio.timeout(self._timeout_s)
        try:
            with self._clock_stopped(), self._busy.use():
                async with reply_timeout:
                    return await self._chat.reply(messages, tools=tools, purpose=purpose)
        except TimeoutError:
            if not reply_timeout.expired():
                raise
            raise EngineError(f"the engine gave no reply within {self._timeout_s:g} s") from None

    @contextmanager
    def _clock_stopped(self) -> Generator[None]:
        if self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline:
            yield
            return
        if self._awaited == 0:
            self._since = time.monotonic()
            self._time_limit.reschedule(None)
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if self._awaited == 0:
                self._time_limit.reschedule(self._deadline)
                waited = time.monotonic() - self._since
                self._timings["model"] = self._timings.get("model", 0.0) + waited


class MeteredSandbox(Sandbox):
    """Adds up the seconds of the agent's commands and records whether it ran any."""

    def __init__(self, sandbox: Sandbox, timings: dict[str, float], busy: BusyMeter) -> None:
        """`busy`: that of all sandboxes."""
        self.id, self.spec, self.enforced = sandbox.id, sandbox.spec, sandbox.enforced
        self.used = False
        self.inner = sandbox
        self._timings = timings
        self._busy = busy

    async def _exec(self, command: Command) -> ExecResult:
        self.used = True
        started = time.monotonic()
        try:
            with self._busy.use():
                return await self.inner._exec(command)
        finally:
            self._timings["exec"] = self._timings.get("exec", 0.0) + time.monotonic() - started

    async def read(self, path: str) -> bytes:
        return await self.inner.read(path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self.inner.write(path, data, mode=mode)

    async def upload(self, source: Path, target: str) -> None:
        await self.inner.upload(source, target)

    async def download(self, source: str, target: Path) -> None:
        await self.inner.download(source, target)

    async def snapshot(self, target: Path) -> None:
        await self.inner.snapshot(target)

    async def close(self) -> None:
        await self.inner.close()
