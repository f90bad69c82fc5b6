"""One rank: `python -m hone.train.ranks.worker`.

The environment is torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) and that of
`hone.train.ranks.calls`. On one machine the run starts its ranks itself. On several:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m hone.train.ranks.worker

The rank serves calls until the run closes the connection or is gone, and then exits at once, even from the
middle of a collective. Exit code 1, at which torchrun stops the others: the run has refused this rank.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from hone.train.ranks.calls import (
    CANCEL,
    LEAVE,
    START,
    Answer,
    Call,
    Hello,
    connect,
    read_calls,
    versions,
)
from hone.utils.errors import HoneError

if TYPE_CHECKING:
    from hone.policy.engines.nccl import OpenSender
    from hone.train.ranks.sharded import ShardedLearner


def main(open_sender: OpenSender | None = None) -> None:
    """Serve calls; `open_sender`: how rank 0 sends weights to engine servers, by default over NCCL."""
    os.dup2(2, 1)  # one log per rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which stops its ranks
    try:
        connection = connect(os.environ)
    except HoneError as error:
        sys.exit(f"hone: {error}")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connection.send(Hello(rank, size, os.getpid(), versions()))
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    cancelled, called = threading.Event(), threading.Event()

    def on_call(call: Call) -> None:
        called.set()
        cancelled.clear()  # here, so that a cancel that follows the call is not lost
        calls.put(call)

    def read() -> None:
        read_calls(connection, on_call, {CANCEL: cancelled.set, LEAVE: serve.leave_servers})
        when = "" if called.is_set() else " before its first call: see the error of the run"
        sys.stderr.write(f"the run has closed the connection{when}\n")
        sys.stderr.flush()
        os._exit(
            0 if called.is_set() else 1
        )  # the main thread may be inside a collective that will never end

    serve = Server(cancelled, open_sender)
    threading.Thread(target=read, daemon=True).start()
    while True:
        connection.send(serve.answer(calls.get()))


class Server:
    """Answers the calls of the run with the rank's learner."""

    def __init__(self, cancelled: threading.Event, open_sender: OpenSender | None = None) -> None:
        self._cancelled = cancelled
        self._open_sender = open_sender
        self._learner: ShardedLearner | None = None

    def answer(self, call: Call) -> Answer:
        try:
            return Answer(self._call(call))
        except HoneError as error:
            return Answer(error=error)
        except Exception as error:
            trace = traceback.format_exc()
            sys.stderr.write(trace)
            sys.stderr.flush()
            return Answer(error=RuntimeError(f"{type(error).__name__}: {error}"), trace=trace)

    def leave_servers(self) -> None:
        """End a broadcast that another thread is in; does not block."""
        if self._learner is not None:
            self._learner.leave_servers()

    def _call(self, call: Call) -> Any:
        if call.method == START:
            from hone.train.ranks.sharded import open_learner  # imports torch

            spec, timeout_s = call.arguments
            self._learner = open_learner(spec, timeout_s, self._cancelled, self._open_sender)
            return None
        assert self._learner is not None, "the first call is `start`"
        return getattr(self._learner, call.method)(*call.arguments)


if __name__ == "__main__":
    main()
