"""An event loop on virtual time: its clock jumps to the next timer instead of waiting for it.

Nothing in it may wait for a thread, a process or a socket. The same coroutines give the same result in every
process: tasks are cancelled in the order in which they were created.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar

from hone.simulate.errors import DeadlockError

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Reads nothing, and moves the clock of its loop instead of waiting."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError(
                f"every task of the simulation waits for another one, at {self.loop.time():.3f} s of virtual "
                "time: this is a defect of the pipeline or of the simulation"
            )
        if timeout > 0:
            self.loop.advance(timeout)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address in memory."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module. `time()` starts at 0, in seconds."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6  # after months, floats are coarser than a real clock's 1e-9 s
        _NumberedTask._numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **kwargs: _NumberedTask(coro, loop=loop, **kwargs))

    def time(self) -> float:
        return self._virtual_s

    def advance(self, seconds: float) -> None:
        self._virtual_s += seconds

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> NoReturn:
        raise RuntimeError(f"{func!r} needs a thread, and virtual time waits for none")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on virtual time. Raises DeadlockError when nothing can go on."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
