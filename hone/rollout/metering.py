"""Wrappers of an agent's sandbox and chat: they measure time, enforce the reply timeout, park the sandbox."""

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
from hone.rollout.sandbox import RolloutSandbox
from hone.rollout.time_limit import TimeLimit
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
    before the limit; later requests do not pause it. A long reply parks `sandbox`.
    """

    def __init__(
        self,
        chat: Conversation,
        timings: dict[str, float],
        timeout_s: float,
        time_limit: TimeLimit,
        busy: BusyMeter,
        sandbox: RolloutSandbox,
    ) -> None:
        """`busy`: the engine's."""
        self.tree = chat.tree
        self._chat = chat
        self._timings = timings
        self._timeout_s = timeout_s
        self._time_limit = time_limit
        self._busy = busy
        self._sandbox = sandbox
        self._awaited = 0  # running replies
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
            async with self._sandbox.during_reply():
                with self._time_limit.paused(), self._timed(), self._busy.use():
                    async with reply_timeout:
                        return await self._chat.reply(messages, tools=tools, purpose=purpose)
        except TimeoutError:
            if not reply_timeout.expired():
                raise
            raise EngineError(f"the engine gave no reply within {self._timeout_s:g} s") from None

    @contextmanager
    def _timed(self) -> Generator[None]:
        if self._awaited == 0:
            self._since = time.monotonic()
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if self._awaited == 0:
                waited = time.monotonic() - self._since
                self._timings["model"] = self._timings.get("model", 0.0) + waited


class MeteredSandbox(Sandbox):
    """A rollout's sandbox; adds up the seconds of the agent's commands and records whether it ran any."""

    def __init__(self, inner: RolloutSandbox, timings: dict[str, float], busy: BusyMeter) -> None:
        """`busy`: that of all sandboxes."""
        first = inner.first
        self.id, self.spec, self.enforced = first.id, first.spec, first.enforced
        self.used = False
        self.inner = inner
        self._timings = timings
        self._busy = busy

    async def _exec(self, command: Command) -> ExecResult:
        self.used = True
        async with self.inner.use() as sandbox:
            started = time.monotonic()
            try:
                with self._busy.use():
                    return await sandbox._exec(command)
            finally:
                self._timings["exec"] = self._timings.get("exec", 0.0) + time.monotonic() - started

    async def read(self, path: str) -> bytes:
        async with self.inner.use() as sandbox:
            return await sandbox.read(path)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        async with self.inner.use() as sandbox:
            await sandbox.write(path, data, mode=mode)

    async def upload(self, source: Path, target: str) -> None:
        async with self.inner.use() as sandbox:
            await sandbox.upload(source, target)

    async def download(self, source: str, target: Path) -> None:
        async with self.inner.use() as sandbox:
            await sandbox.download(source, target)

    async def snapshot(self, target: Path, *, whole: bool = False) -> None:
        async with self.inner.use() as sandbox:
            await sandbox.snapshot(target, whole=whole)

    async def close(self) -> None:
        async with self.inner.use() as sandbox:
            await sandbox.close()
