from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hone.agents import AgentRun
from hone.policy.engine import EngineError
from hone.policy.reply import CallKind, Reply
from hone.rollout.busy import BusyShares
from hone.rollout.metering import MeteredChat, MeteredSandbox
from hone.rollout.parking import Place
from hone.rollout.sandbox import RolloutSandbox
from hone.rollout.time_limit import TimeLimit
from hone.sandbox import Sandbox
from hone.types import Call, Message, TokenTree
from hone.utils.busy import BusyMeter
from tests.environment.scripted import ScriptedSandbox, ended
from tests.rollout.memory import MemorySandbox, World
from tests.virtual_time import run

FAR = 1000.0  # seconds


class Slow:
    """A conversation whose replies come when the test lets them, which it may do in advance."""

    def __init__(self) -> None:
        self.tree = TokenTree()
        self.forks: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.max_prompt_tokens = 100
        self.waiting: dict[str, asyncio.Future[None]] = {}

    def measure(self, messages: Sequence[Message], *, tools: Any = None) -> int:
        return 0

    async def reply(
        self, messages: list[Message], *, tools: Any = None, purpose: CallKind = CallKind.MAIN
    ) -> Reply:
        name = messages[-1]["content"]
        await self.waiting.setdefault(name, asyncio.get_running_loop().create_future())
        return Reply(content=name, node=None)

    async def close(self) -> None: ...


def kept(sandbox: Sandbox | None = None) -> RolloutSandbox:
    """`sandbox`, which is never parked; by default one in which every command succeeds."""
    return RolloutSandbox(
        sandbox or ScriptedSandbox(lambda command: ended()),
        Place(None, 0.0),
        provider=World([]),
        parking=None,
        run=AgentRun(),
        timings={},
        busy=BusyShares(),
    )


def metered(slow: Slow, timings: dict[str, float], timeout_s: float, limit: asyncio.Timeout) -> MeteredChat:
    return MeteredChat(slow, timings, timeout_s, TimeLimit(limit), BusyMeter(), kept())


async def start_reply(chat: MeteredChat, slow: Slow, name: str) -> asyncio.Task[Reply]:
    """The task of a reply that is under way."""
    task = asyncio.create_task(chat.reply([{"role": "user", "content": name}]))
    while name not in slow.waiting:  # noqa: ASYNC110 - the next step of the loop, not a time
        await asyncio.sleep(0)
    return task


def test_time_limit_is_paused_until_the_last_concurrent_reply() -> None:
    async def scenario() -> None:
        slow, timings = Slow(), {}
        deadline = asyncio.get_running_loop().time() + FAR
        async with asyncio.timeout_at(deadline) as limit:
            chat = metered(slow, timings, FAR, limit)
            one, two = await start_reply(chat, slow, "one"), await start_reply(chat, slow, "two")
            assert limit.when() is None
            slow.waiting["two"].set_result(None)
            assert (await two).content == "two"
            assert limit.when() is None
            assert "model" not in timings
            slow.waiting["one"].set_result(None)
            await one
            assert limit.when() == deadline
            first = timings["model"]
            three = await start_reply(chat, slow, "three")
            slow.waiting["three"].set_result(None)
            await three
            assert limit.when() == deadline
            assert timings["model"] > first

    run(scenario())


def test_reply_requested_after_the_limit_does_not_pause_it() -> None:
    async def scenario() -> None:
        slow = Slow()
        later: list[asyncio.Task[Reply]] = []
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + FAR) as limit:
                chat = metered(slow, {}, 10 * FAR, limit)
                one = await start_reply(chat, slow, "one")
                await asyncio.sleep(FAR)  # the limit passes while the first is awaited
                later.append(await start_reply(chat, slow, "two"))
                assert limit.when() is None
                slow.waiting["one"].set_result(None)
                await one
                await asyncio.Event().wait()
        slow.waiting["two"].set_result(None)
        assert (await later[0]).content == "two"

    run(scenario())


def test_silent_engine_is_engine_error_with_concurrent_replies() -> None:
    async def scenario() -> None:
        slow = Slow()
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + FAR) as limit:
            chat = metered(slow, {}, 0.05, limit)
            one = await start_reply(chat, slow, "one")
            slow.waiting["two"] = asyncio.get_running_loop().create_future()
            slow.waiting["two"].set_result(None)  # in advance: no stall makes this one late, too
            assert (await chat.reply([{"role": "user", "content": "two"}])).content == "two"
            with pytest.raises(EngineError, match=r"no reply within 0\.05 s"):
                await one

    run(scenario())


def test_seconds_of_commands_are_added_up() -> None:
    async def scenario() -> None:
        timings: dict[str, float] = {}
        sandbox = MeteredSandbox(kept(), timings, BusyMeter())
        started = time.monotonic()
        await sandbox.exec("true")
        first = timings["exec"]
        await sandbox.exec("true")
        assert 0 <= first <= timings["exec"] <= time.monotonic() - started

    run(scenario())


def test_files_go_to_and_from_the_sandbox_of_the_rollout(tmp_path: Path) -> None:
    class Files(MemorySandbox):
        """Records what is asked of it."""

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[tuple[object, ...]] = []

        async def read(self, path: str) -> bytes:
            return path.encode()

        async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
            self.asked.append(("write", path, data, mode))

        async def upload(self, source: Path, target: str) -> None:
            self.asked.append(("upload", source, target))

        async def download(self, source: str, target: Path) -> None:
            self.asked.append(("download", source, target))

        async def snapshot(self, target: Path, *, whole: bool = False) -> None:
            self.asked.append(("snapshot", target, whole))

        async def close(self) -> None:
            self.asked.append(("close",))

    async def scenario() -> None:
        files = Files()
        sandbox = MeteredSandbox(kept(files), {}, BusyMeter())
        assert await sandbox.read("/a") == b"/a"
        await sandbox.write("/b", b"text", mode=0o600)
        await sandbox.upload(tmp_path, "/c")
        await sandbox.download("/d", tmp_path)
        await sandbox.snapshot(tmp_path, whole=True)
        await sandbox.close()
        assert files.asked == [
            ("write", "/b", b"text", 0o600),
            ("upload", tmp_path, "/c"),
            ("download", "/d", tmp_path),
            ("snapshot", tmp_path, True),
            ("close",),
        ]
        assert not sandbox.used  # it ran no command

    run(scenario())
