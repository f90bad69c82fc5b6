"""The driver's side of the ranks: the `Learner` protocol over one connection per rank."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hone.policy.engines.nccl import PublishedWeights, Rendezvous, Sender
from hone.train.batches import TrainRow
from hone.train.errors import RankError, TrainError
from hone.train.learner import LearnerSpec, PassReport, Usage
from hone.train.ranks.calls import (
    CANCEL,
    KEY,
    LEAVE,
    START,
    Answer,
    Call,
    Hello,
    RankListener,
    ranks_elsewhere,
    versions,
)
from hone.train.ranks.launcher import RankProcesses
from hone.train.settings import NO_CRITIC
from hone.types import Float32

if TYPE_CHECKING:
    from torch import Tensor

_EXIT_S = 5.0  # for the exit code of a rank that has closed its connection
_DEAD_S = 1.0  # for the end of a rank, after another has failed
_GRACE_S = 60.0  # for the other ranks, after one has answered with an error
_POLL_S = 0.2


class RanksLearner:
    """A learner on `spec.settings.ranks` processes.

    On one machine it starts them itself. Where HONE_RANKS_ADDRESS and HONE_RANKS_KEY are set, it waits for
    ranks that something else starts (torchrun, Slurm, Ray), see `hone.train.ranks.worker`.

    Invariant: after a RankError no rank runs any more; `restart` starts new ones with the start weights.
    """

    def __init__(self, spec: LearnerSpec, *, logs: Path, devices: Sequence[int] | None = None) -> None:
        """Start the ranks and load the model into them; blocks. Raises RankError, TrainError."""
        if spec.objective.critic is not None:
            raise TrainError(NO_CRITIC)
        self.spec = spec
        self._logs = logs
        self._devices = devices
        self._timeout_s = spec.settings.rank_timeout_s
        self._attempt = 0
        self._processes: RankProcesses | None = None
        self._connections: dict[int, Connection] = {}
        self._failure: str | None = None  # why the ranks were stopped
        self._calling = threading.RLock()  # waiting for a checkpoint comes from another thread
        self._sending = threading.Lock()  # and so does `cancel`, during a call
        self._start()

    def restart(self) -> None:
        """Stop the ranks, if any still run, and start new ones with the start weights and a new optimiser."""
        with self._calling:
            self.close()
            self._attempt += 1
            self._start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks that this learner has started."""
        return self._processes.pids if self._processes else []

    def forward_backward(self, rows: Sequence[TrainRow]) -> PassReport:
        return merge(self._call("forward_backward", list(rows)))

    def optim_step(self, lr: float) -> float:
        return self._call("optim_step", lr)[0]

    def clear_gradients(self) -> None:
        self._call("clear_gradients")

    def logprobs(
        self, rows: Sequence[TrainRow], of: Literal["policy", "reference"] = "policy"
    ) -> list[Float32]:
        return add_rows(self._call("logprobs", list(rows), of))

    def values(self, rows: Sequence[TrainRow]) -> list[Float32]:
        raise TrainError(NO_CRITIC)

    def next_logprobs(self, prompt: Sequence[int]) -> Float32:
        return self._call("next_logprobs", list(prompt))[0]

    def save(self, folder: Path) -> Callable[[], None]:
        self._call("save", folder)
        attempt = self._attempt

        def is_saved() -> bool:
            with self._calling:
                if self._attempt != attempt:
                    raise RankError(f"the ranks were started again before {folder} was complete")
                return all(self._call("is_saved"))

        def wait_saved() -> None:
            while not is_saved():
                time.sleep(_POLL_S)  # between the calls, so that training goes on

        return wait_saved

    def load(self, folder: Path) -> None:
        self._call("load", folder)

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._call("export", folder)

    @property
    def adapted(self) -> bool:
        return self.spec.settings.lora is not None

    def export_adapters(self, folder: Path) -> None:
        self._call("export_adapters", folder)

    def sender(self, kind: str) -> Sender:
        self._call("open_sender", kind)
        return RanksSender(self, kind)

    def published(self) -> PublishedWeights:
        manifest, fingerprint = self._call("published")[0]
        return PublishedWeights(manifest=manifest, tensors=lambda: (), fingerprint=fingerprint)

    def server_address(self) -> tuple[str, int]:
        """Return the address of rank 0's machine and a free port of it."""
        return self._call("server_address")[0]

    def join_servers(self, kind: str, rendezvous: Rendezvous) -> None:
        """Let rank 0 join the engine servers. Raises EngineError, TrainError."""
        self._call("open_sender", kind)  # of ranks that were started again
        self._call("join_servers", rendezvous)

    def broadcast(self) -> None:
        """Send the weights to the servers that rank 0 has joined. Raises EngineError, RankError."""
        self._call("broadcast")

    def leave_servers(self) -> None:
        """Let rank 0 leave the engine servers, also during `broadcast` in another thread."""
        self._signal(LEAVE)

    @property
    def starts(self) -> int:
        """How often the ranks were started."""
        return self._attempt + 1

    def usage(self) -> Usage:
        parts: list[Usage] = self._call("usage")
        flops = [part.peak_flops for part in parts if part.peak_flops is not None]
        return Usage(
            peak_memory_gib=max(part.peak_memory_gib for part in parts),
            peak_flops=sum(flops) if len(flops) == len(parts) else None,
        )

    def cancel(self) -> None:
        self._signal(CANCEL)

    def close(self) -> None:
        with self._sending:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()
        if self._processes is not None:
            self._processes.stop()
            self._processes = None

    def _signal(self, message: str) -> None:
        """Send a message that the ranks receive during a call, too."""
        with self._sending:
            for connection in self._connections.values():
                with suppress(OSError):
                    connection.send(message)

    def _start(self) -> None:
        outside = ranks_elsewhere(os.environ)
        listener = RankListener(*outside) if outside else RankListener()
        try:
            if not outside:
                self._processes = RankProcesses(
                    self.spec.settings.ranks,
                    connection=listener.environment,
                    logs=self._logs,
                    attempt=self._attempt,
                    devices=self._devices,
                )
            self._accept(listener)
            self._call(START, self.spec, self._timeout_s)
        except BaseException:
            self.close()
            raise
        finally:
            listener.close()

    def _accept(self, listener: RankListener) -> None:
        """Wait for the connections of all ranks."""
        ranks = self.spec.settings.ranks
        deadline = time.monotonic() + self._timeout_s
        while len(self._connections) < ranks:
            missing = sorted(set(range(ranks)) - set(self._connections))
            for rank in self._processes.dead() if self._processes else ():
                raise self._fail(f"{self._ended(rank)} before it connected", rank)
            if time.monotonic() > deadline:
                refused = f"; with another {KEY}: {listener.refused}" if listener.refused else ""
                raise self._fail(
                    f"rank {missing[0]} did not connect to {listener.address} within {self._timeout_s:.0f} s"
                    f"{refused}",
                    missing[0],
                )
            accepted = listener.accept(_POLL_S)
            if accepted is not None:
                message, connection = accepted
                self._connections[self._checked(message, ranks, connection)] = connection

    def _checked(self, message: Hello, ranks: int, connection: Connection) -> int:
        """Return the rank that says hello, if it belongs to this run."""
        same = message.size == ranks and message.versions == versions()
        if not same or message.rank in self._connections:
            connection.close()
            raise RankError(
                f"rank {message.rank} of {message.size} with {message.versions} has connected, but this run "
                f"has {ranks} ranks, each once, with {versions()}: start that many, from one installation"
            )
        return message.rank

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of all ranks, by rank.

        Raises the TrainError or EngineError of a rank, and RankError, after which no rank runs any more.
        """
        with self._calling:
            if not self._connections:
                reason = self._failure or "the ranks are stopped"
                raise RankError(f"{reason}: restart the learner, and load the last checkpoint")
            for rank, connection in self._connections.items():
                try:
                    with self._sending:
                        connection.send(Call(method, arguments))
                except OSError:
                    raise self._fail(f"{self._ended(rank)} before {method}", rank) from None
            answers = self._answers(method)
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        return [answers[rank].value for rank in sorted(answers)]

    def _answers(self, method: str) -> dict[int, Answer]:
        """Wait for the answer of every rank."""
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + self._timeout_s
        while len(answers) < len(self._connections):
            open_ = {c: rank for rank, c in self._connections.items() if rank not in answers}
            ready = wait(list(open_), max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank, answer in answers.items():
                    if answer.error is not None:
                        raise self._fail(f"rank {rank} failed in {method}: {answer.error}", rank)
                late = ", ".join(str(rank) for rank in sorted(open_.values()))
                raise self._fail(f"rank {late} did not finish {method} in time", min(open_.values()))
            for connection in ready:
                rank = open_[connection]  # pyright: ignore[reportArgumentType]
                try:
                    answer: Answer = connection.recv()  # pyright: ignore
                except (EOFError, OSError):
                    raise self._fail(f"{self._ended(rank)} during {method}", rank) from None
                if answer.trace:
                    self._raise_if_dead(method)
                    raise self._fail(f"rank {rank} failed in {method}: {answer.error}", rank)
                answers[rank] = answer
                if answer.error is not None and method == START:
                    raise answer.error  # the others may wait for this rank in a collective
                if answer.error is not None:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        return answers

    def _raise_if_dead(self, method: str) -> None:
        """Raise RankError if the process of a rank has ended, or ends soon.

        The ranks that it leaves fail in the middle of a collective, and may answer before its end is known.
        """
        deadline = time.monotonic() + _DEAD_S
        while self._processes is not None and time.monotonic() < deadline:
            for rank in self._processes.dead():
                raise self._fail(f"{self._ended(rank)} during {method}", rank)
            time.sleep(0.02)

    def _ended(self, rank: int) -> str:
        """Return how a rank has ended, in words."""
        code = self._processes.exit_code(rank, _EXIT_S) if self._processes else None
        if code is None:
            return f"rank {rank} has closed its connection"
        if code < 0:
            return f"rank {rank} was killed by signal {-code}"
        return f"rank {rank} exited with code {code}"

    def _fail(self, what: str, rank: int) -> RankError:
        """Stop all ranks; return the error, with the end of the rank's log."""
        log = ""
        if self._processes is not None:
            path, lines = self._processes.log(rank)
            log = f"; its log {path} ends with:\n{lines}" if lines else f"; its log {path} is empty"
        self.close()
        self._failure = f"{what}; all ranks are stopped{log}"
        return RankError(self._failure)


class RanksSender:
    """The `Sender` of a run with ranks: rank 0 of the ranks is rank 0 of the servers' group."""

    def __init__(self, learner: RanksLearner, kind: str) -> None:
        self._learner = learner
        self._kind = kind
        self._joined: int | None = None  # the start of the ranks that joined

    @property
    def in_group(self) -> bool:
        return self._joined == self._learner.starts

    def address(self) -> tuple[str, int]:
        return self._learner.server_address()

    def join(self, rendezvous: Rendezvous) -> None:
        starts = self._learner.starts
        self._learner.join_servers(self._kind, rendezvous)
        self._joined = starts

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Send the weights of the ranks; `tensors` has none, because this process holds no weights."""
        self._learner.broadcast()

    def leave(self) -> None:
        self._joined = None
        self._learner.leave_servers()


def merge(parts: Sequence[PassReport]) -> PassReport:
    """Return the report of all ranks together."""
    passes: Counter[str] = Counter()
    for part in parts:
        passes.update(part.passes)
    return PassReport(
        loss=sum(part.loss for part in parts),
        logprobs=add_rows([part.logprobs for part in parts if part.logprobs is not None]),
        entropies=add_rows([part.entropies for part in parts if part.entropies is not None]),
        branch_tokens=sum(part.branch_tokens for part in parts),
        unique_tokens=sum(part.unique_tokens for part in parts),
        passes=passes,
        replayed=sum(replayed)
        if (replayed := [p.replayed for p in parts if p.replayed is not None])
        else None,
        flops=sum(part.flops for part in parts),
    )


def add_rows(parts: Sequence[Sequence[Float32]]) -> list[Float32]:
    """Return the values of each row, [n]: each token is 0 on all ranks but the one that computed it."""
    return [np.stack(row).sum(axis=0).astype(np.float32) for row in zip(*parts, strict=True)]
