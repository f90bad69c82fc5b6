r"""Checkpoints of a run, written in a thread while the run goes on.

step k -- begin --> step k + 1 collects and trains -- wait, begin --> step k + 2 ...
             \-- thread: files, checksums, rename, `then`
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Self

from hone.train.checkpoint import Tokenizer, TrainState, begin_save
from hone.train.errors import CheckpointError, RankError
from hone.train.settings import CheckpointSettings
from hone.train.trainer import Trainer

log = logging.getLogger(__name__)

ABANDON_S = 5.0  # a run that was stopped must end within 10 s; an incomplete checkpoint does no harm


class CheckpointWriter:
    """Writes the checkpoints of one run; at most one is under way.

    Use it as a context manager, synchronous or not. The end of the block waits for the last checkpoint; after
    an error in the block for a few seconds only, unless it is a RankError, after which the run goes on.
    """

    def __init__(
        self, directory: Path, trainer: Trainer, tokenizer: Tokenizer, settings: CheckpointSettings
    ) -> None:
        self._directory = directory
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._settings = settings
        self._writing: Future[Path] | None = None
        self._last: Path | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._writing is not None and not self._writing.done()

    def begin(
        self, state: TrainState, *, protect: Collection[int] = (), then: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the checkpoint before, copy the state, and write it in a thread.

        `then` is called in the thread once the checkpoint is complete. Rotation spares the steps in
        `protect`. Raises CheckpointError, also that of the checkpoint before; blocks.
        """
        self.wait()
        complete = begin_save(
            self._directory,
            state,
            trainer=self._trainer,
            tokenizer=self._tokenizer,
            keep=self._settings.keep,
            protect=protect,
        )
        writing: Future[Path] = Future()
        writing.set_running_or_notify_cancel()

        def work() -> None:
            try:
                path = complete()
                then()
            except BaseException as error:  # wait() raises it
                writing.set_exception(error)
            else:
                writing.set_result(path)

        self._writing = writing
        threading.Thread(target=work, name=f"checkpoint-{state.step}", daemon=True).start()

    def wait(self) -> Path | None:
        """Return the folder of the last checkpoint once it is complete; None before the first.

        Raises CheckpointError when it cannot be written within `timeout_s`, and the errors of `then`; blocks.
        """
        if self._writing is not None:
            wait([self._writing], self._settings.timeout_s)
        return self._take()

    async def wait_async(self) -> Path | None:
        """Same as `wait`; cancellation leaves the write going."""
        if self._writing is not None:
            await _until_done(self._writing, self._settings.timeout_s)
        return self._take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.wait()
        elif self._writing is not None:
            wait([self._writing], self._wait_after(kind))
            self._report(kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.wait_async()
        elif self._writing is not None:
            await _until_done(self._writing, self._wait_after(kind))
            self._report(kind)

    def _take(self) -> Path | None:
        writing, self._writing = self._writing, None
        if writing is None:
            return self._last
        if not writing.done():
            raise self._late()
        self._last = writing.result()
        return self._last

    def _late(self) -> CheckpointError:
        return CheckpointError(
            f"a checkpoint in {self._directory} is not complete after {self._settings.timeout_s:g} s: "
            "check its disk, or raise checkpoint.timeout_s"
        )

    def _wait_after(self, kind: type[BaseException]) -> float:
        """Return for how many seconds to wait after an error in the block.

        A run that goes on after a RankError must not do so beside the thread of an earlier checkpoint.
        """
        return self._settings.timeout_s if issubclass(kind, RankError) else ABANDON_S

    def _report(self, kind: type[BaseException]) -> None:
        """Log how the checkpoint under way has ended; another error ends the block."""
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            if issubclass(kind, RankError):
                raise self._late()
            log.warning("a checkpoint in %s is left incomplete", self._directory)
        elif writing is not None and (error := writing.exception()) is not None:
            log.warning("%s", error)


async def _until_done(writing: Future[Path], timeout_s: float) -> None:
    """Wait until the write ends, however it ends, or until the time is over."""
    wrapped = asyncio.wrap_future(writing)
    wrapped.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it is taken later
    try:
        await asyncio.wait([wrapped], timeout=timeout_s)
    finally:
        wrapped.cancel()  # the write itself cannot be cancelled
