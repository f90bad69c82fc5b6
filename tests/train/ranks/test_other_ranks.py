"""Ranks that something else starts and that do not belong to the run: one sentence, no rank left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hone.policy.engines.managed_server import reserved_port
from hone.train.errors import RankError, TrainError
from hone.train.learner import LearnerSpec
from hone.train.loss import policy_objective
from hone.train.ranks import calls
from hone.train.ranks.calls import (
    ADDRESS,
    CANCEL,
    KEY,
    START,
    Answer,
    Hello,
    RankListener,
    connect,
    versions,
)
from hone.train.ranks.learner import RanksLearner
from hone.train.settings import LearnerSettings, LossSettings, OptimizerSettings, PassSettings
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.model
WORKER = "hone.train.ranks.worker"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The address and the key of the run, set for this process."""
    with reserved_port("127.0.0.1") as port:
        found = {ADDRESS: f"tcp:127.0.0.1:{port}", KEY: "ab" * 32}
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield found


def open_learner(folder: Path, *, timeout_s: float = LIMIT_S) -> RanksLearner:
    """Wait for two ranks."""
    spec = LearnerSpec(
        model=folder,
        dtype="float32",
        objective=policy_objective(LossSettings(), temperature=1.0),
        optimizer=OptimizerSettings(),
        passes=PassSettings(),
        settings=LearnerSettings(learner="ranks", ranks=2, rank_timeout_s=timeout_s),
    )
    return RanksLearner(spec, logs=folder / "logs")


def say_hello(environment: dict[str, str], *hellos: Hello) -> list[Connection]:
    connections: list[Connection] = []
    for hello in hellos:
        connections.append(connect(environment))
        connections[-1].send(hello)
    return connections


def is_closed(connection: Connection) -> bool:
    try:
        connection.recv()
    except (EOFError, OSError):
        return True
    return False


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (Hello(0, 3, 1, versions()), r"rank 0 of 3 .* has connected, but this run has 2 ranks, each once"),
        (Hello(0, 2, 1, "torch 1.0"), r"rank 0 of 2 with torch 1\.0 has connected, .* from one installation"),
    ],
)
def test_rank_of_another_run_is_refused(
    environment: dict[str, str], tmp_path: Path, hello: Hello, said: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        rank = pool.submit(say_hello, environment, hello)
        with pytest.raises(RankError, match=said):
            open_learner(tmp_path)
        assert is_closed(rank.result()[0])


def test_rank_that_comes_twice_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    hello = Hello(1, 2, 1, versions())
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(say_hello, environment, hello, hello)
        with pytest.raises(RankError, match=r"rank 1 of 2 .* 2 ranks, each once"):
            open_learner(tmp_path)
        assert all(map(is_closed, ranks.result()))


def test_rank_with_another_key_is_told_so(environment: dict[str, str]) -> None:
    listener = RankListener(environment[ADDRESS], bytes.fromhex(environment[KEY]))
    with ThreadPoolExecutor(1) as pool:
        rank = pool.submit(connect, {**environment, KEY: "cd" * 32})
        while not listener.refused:
            assert listener.accept(LIMIT_S) is None
        with pytest.raises(RankError, match=r"has another key: set HONE_RANKS_KEY as for the run"):
            rank.result()
    listener.close()


def test_run_counts_ranks_with_another_key(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(listener: RankListener, _: float) -> None:
        listener.refused += 1

    monkeypatch.setattr(RankListener, "accept", refuse)
    with pytest.raises(RankError, match=r"rank 0 did not connect .*; with another HONE_RANKS_KEY: \d"):
        open_learner(tmp_path, timeout_s=0.01)


def test_rank_waits_for_a_run_that_starts_later(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins to listen once the rank's first attempt was refused."""
    client, listeners = calls.Client, list[RankListener]()

    def attempt(*args: Any, **options: Any) -> Connection:
        try:
            return client(*args, **options)
        except ConnectionRefusedError:
            listeners.append(RankListener(environment[ADDRESS], bytes.fromhex(environment[KEY])))
            accepted.append(pool.submit(listeners[0].accept, LIMIT_S))
            raise

    accepted: list[Future[Any]] = []
    monkeypatch.setattr(calls, "Client", attempt)
    with ThreadPoolExecutor(1) as pool:
        connect(environment).send("hello")
        assert accepted[0].result() is not None
    listeners[0].close()


def test_rank_without_a_run_ends_with_a_sentence(environment: dict[str, str]) -> None:
    with pytest.raises(RankError, match=r"no run listens on tcp:127\.0\.0\.1:\d+ .*: start it, or correct"):
        connect(environment, wait_s=0.0)


def test_first_rank_that_cannot_start_ends_the_start(environment: dict[str, str], tmp_path: Path) -> None:
    """The other one would wait for it for ever."""
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(say_hello, environment, Hello(0, 2, 1, versions()), Hello(1, 2, 1, versions()))
        ranks.add_done_callback(lambda done: done.result()[1].send(Answer(error=TrainError("GPU 1 is full"))))
        with pytest.raises(TrainError, match=r"^GPU 1 is full$"):
            open_learner(tmp_path)
        waiting = ranks.result()[0]
        assert waiting.recv().method == START
        assert is_closed(waiting)


def test_error_of_one_rank_is_not_lost_while_another_hangs(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.train.ranks.learner._GRACE_S", 0.1)
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(say_hello, environment, Hello(0, 2, 1, versions()), Hello(1, 2, 1, versions()))
        ranks.add_done_callback(lambda done: [rank.send(Answer()) for rank in done.result()])
        learner = open_learner(tmp_path)
        ranks.result()[1].send(Answer(error=TrainError("the disk is full")))
        with pytest.raises(
            RankError, match="rank 1 failed in optim_step: the disk is full; all ranks are sto"
        ):
            learner.optim_step(1e-3)


def test_checkpoint_is_complete_once_every_rank_has_saved(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter([None])  # one, between the questions to the ranks
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(say_hello, environment, Hello(0, 2, 1, versions()), Hello(1, 2, 1, versions()))
        ranks.add_done_callback(lambda done: [rank.send(Answer()) for rank in done.result()])
        learner = open_learner(tmp_path)
        for rank, first in zip(ranks.result(), (True, False), strict=True):
            for answer in (Answer(), Answer(first), Answer(value=True)):
                rank.send(answer)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: next(pauses))
        monkeypatch.setattr("hone.train.ranks.learner.time", clock)
        learner.save(tmp_path)()
        learner.close()
    asked = [ranks.result()[1].recv().method for _ in range(4)]
    assert asked == [START, "save", "is_saved", "is_saved"]


class Watched:
    """A lock that tells when it is asked for."""

    def __init__(self, lock: threading.Lock, asked: threading.Event) -> None:
        self.lock, self.asked = lock, asked

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_cancellation_under_way_reaches_every_rank_of_a_learner_that_closes(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, told, asked = threading.Event(), threading.Event(), threading.Event()

    def send_later(message: object) -> None:
        begun.set()
        assert told.wait(LIMIT_S)
        send(message)

    with ThreadPoolExecutor(2) as pool:
        ranks = pool.submit(say_hello, environment, Hello(0, 2, 1, versions()), Hello(1, 2, 1, versions()))
        ranks.add_done_callback(lambda done: [rank.send(Answer()) for rank in done.result()])
        learner = open_learner(tmp_path)
        send = learner._connections[0].send
        monkeypatch.setattr(learner._connections[0], "send", send_later)
        cancelling = pool.submit(learner.cancel)
        assert begun.wait(LIMIT_S)
        monkeypatch.setattr(learner, "_sending", Watched(learner._sending, asked))
        closing = pool.submit(learner.close)
        closing.add_done_callback(lambda _: asked.set())
        assert asked.wait(LIMIT_S)
        waits = not closing.done()
        told.set()
        cancelling.result()
        closing.result()
    assert waits
    for rank in ranks.result():
        assert (rank.recv().method, rank.recv()) == (START, CANCEL)
        assert is_closed(rank)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (KEY, "", "HONE_RANKS_KEY is not set: set HONE_RANKS_ADDRESS and HONE_RANKS_KEY, equal for the run"),
        (ADDRESS, "", "HONE_RANKS_ADDRESS is not set"),
        (KEY, "secret", "HONE_RANKS_KEY is not in hexadecimal digits"),
        (ADDRESS, "somewhere", "HONE_RANKS_ADDRESS is 'somewhere': write unix:NAME or tcp:HOST:PORT"),
    ],
)
def test_half_or_malformed_address_is_refused_by_run_and_rank(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RankError) as of_run:
        open_learner(tmp_path)
    with pytest.raises(RankError) as of_rank:
        connect({**environment, name: value})
    assert str(of_run.value).startswith(said)
    assert str(of_rank.value) == str(of_run.value)


def test_worker_that_cannot_connect_prints_one_line() -> None:
    alone = {name: value for name, value in os.environ.items() if name not in (ADDRESS, KEY)}
    done = subprocess.run(
        [sys.executable, "-m", WORKER],
        env=alone,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"hone: {ADDRESS} and {KEY} are not set: set them as for the run\n"


@pytest.mark.full
@pytest.mark.slow
def test_torchrun_of_another_size_ends_with_the_run(environment: dict[str, str], tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    with subprocess.Popen(
        [*torchrun, "-m", WORKER], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    ) as ranks:
        with pytest.raises(RankError, match=r"rank [0-2] of 3 .* but this run has 2 ranks"):
            open_learner(tmp_path)
        errors = ranks.communicate(timeout=LIMIT_S)[1]
    assert ranks.returncode != 0
    assert "the run has closed the connection before its first call" in errors
