"""Work in a loop of its own: results, errors, Ctrl-C, and callers that run a loop themselves."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from hone.front_door.blocking import Held, block_on
from hone.utils.errors import UsageError


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Workers of pytest-xdist ignore SIGINT; a script and a notebook do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hone"]


def press_ctrl_c() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_result_is_returned_also_inside_a_running_loop():
    async def notebook() -> int:
        return block_on(answer())

    assert block_on(answer()) == 42
    assert asyncio.run(notebook()) == 42
    assert threads() == []


def test_error_is_raised_in_the_caller():
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        block_on(fail())
    assert threads() == []


def test_ctrl_c_cancels_the_work_and_waits_for_its_cleanup():
    events: list[str] = []

    async def work() -> None:
        press_ctrl_c()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        block_on(work())
    assert events == ["cleaned"]
    assert threads() == []


@asynccontextmanager
async def opened(events: list[str], *, failing: str = "") -> AsyncGenerator[str]:
    task = asyncio.current_task()
    if failing == "open":
        raise OSError("not opened")
    if failing == "interrupted":
        press_ctrl_c()
    try:
        if failing == "interrupted":
            await asyncio.Event().wait()
        yield "value"
    finally:
        events.append("closed by the task that opened it" if asyncio.current_task() is task else "other")
    if failing == "close":
        raise OSError("not closed")


def test_one_task_opens_and_closes():
    events: list[str] = []
    held = Held("it", lambda: opened(events))
    assert (held.enter(), held.run(answer())) == ("value", 42)
    with pytest.raises(UsageError, match="it is open already"):
        held.enter()
    held.leave()
    assert events == ["closed by the task that opened it"]
    with pytest.raises(UsageError, match="it is not open"):
        held.run(answer())
    assert held.enter() == "value"  # again
    held.leave()
    assert threads() == []


@pytest.mark.parametrize(("failing", "error"), [("open", OSError), ("interrupted", KeyboardInterrupt)])
def test_failed_opening_is_raised_and_undone(failing: str, error: type[BaseException]):
    events: list[str] = []
    held = Held("it", lambda: opened(events, failing=failing))
    with pytest.raises(error):
        held.enter()
    assert events == ([] if failing == "open" else ["closed by the task that opened it"])
    assert threads() == []


def test_failed_closing_is_raised():
    held = Held("it", lambda: opened([], failing="close"))
    held.enter()
    with pytest.raises(OSError, match="not closed"):
        held.leave()
    assert threads() == []
