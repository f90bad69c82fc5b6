"""What an episode puts between an agent and its sandbox and chat, to know where time went and who failed."""

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
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.sandbox.contract import Command, ExecResult, Sandbox
from hone.types import Call, Message, TokenTree


class Conversation(Protocol):
    """A chat that an episode opens and closes; `hone.policy.chat.Chat` is one."""

    @property
    def tree(self) -> TokenTree: ...

    @property
    def forks(self) -> Mapping[Any, int]:
        """How often history was rewritten, by reason."""
        ...

    @property
    def calls(self) -> Sequence[Call]: ...

    @property
    def max_prompt_tokens(self) -> int: ...

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int: ...

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply: ...

    async def close(self) -> None: ...


class NoChat:
    """The conversation of agents that ask no policy."""

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
        raise EngineError("this run has no engine to ask: choose a scripted agent, or name a model")

    async def close(self) -> None:
        return None


class MeteredChat:
    """Adds up the seconds in which replies are awaited; one that takes too long is the engine's failure.

    The agent's time limit stands still during a reply and strikes after it, so that an engine that is silent
    never looks like a policy that is slow. Of several replies at a time, it stands still until the last of
    those asked for before the limit; one asked for later does not hold it up.
    """

    def __init__(
        self, chat: Conversation, timings: dict[str, float], timeout_s: float, time_limit: asyncio.Timeout
    ) -> None:
        self.tree = chat.tree
        self._chat = chat
        self._timings = timings
        self._timeout_s = timeout_s
        self._time_limit = time_limit
        self._deadline = time_limit.when()
        self._awaited = 0  # replies under way that hold the time limit up
        self._since = 0.0  # when the first of them was asked for

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
        silence = asyncio.timeout(self._timeout_s)
        try:
            with self._clock_stopped():
                async with silence:
                    return await self._chat.reply(messages, tools=tools, purpose=purpose)
        except TimeoutError:
            if not silence.expired():
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
    """Adds up the seconds of the agent's commands and remembers whether it ran any."""

    def __init__(self, sandbox: Sandbox, timings: dict[str, float]) -> None:
        self.id, self.spec, self.enforced = sandbox.id, sandbox.spec, sandbox.enforced
        self.used = False
        self.inner = sandbox
        self._timings = timings

    async def _exec(self, command: Command) -> ExecResult:
        self.used = True
        started = time.monotonic()
        try:
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
