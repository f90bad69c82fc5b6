"""A thread that changes files is waited for, whatever becomes of its caller."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hone.utils.concurrency import run_in_thread


class Work:
    """Something that a thread does when it is told to go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.told = threading.Event(), threading.Event()
        self.done = False
        self._error = error

    def __call__(self) -> str:
        self.begun.set()
        assert self.told.wait(60)
        self.done = True
        if self._error is not None:
            raise self._error
        return "made"


def test_result_or_error_of_the_thread_is_returned():
    async def run(work: Work) -> str:
        work.told.set()
        return await run_in_thread(work)

    assert asyncio.run(run(Work())) == "made"
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(run(Work(OSError("disk full"))))


@pytest.mark.parametrize("error", [None, OSError("disk full")])
@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_caller_waits_for_its_thread_however_often_it_is_cancelled(error, cancels):
    unheard: list[dict[str, object]] = []

    async def run() -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        work = Work(error)
        calling = asyncio.create_task(run_in_thread(work))
        assert await asyncio.to_thread(work.begun.wait, 60)
        for _ in range(cancels):
            calling.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        assert not calling.done()
        work.told.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return work.done

    assert asyncio.run(run())
    assert not unheard
