"""The wire between the run and its ranks: one authenticated connection per rank.

    rank -> run     Hello, then one Answer per call
    run -> rank     Call; CANCEL and LEAVE at any time; the end of the connection stops the rank

`multiprocessing.connection` carries the messages: pickles, after both sides have proved that they know the
key. The key and the address come in two environment variables:

    HONE_RANKS_ADDRESS   `unix:NAME` (abstract socket, one machine) or `tcp:HOST:PORT`
    HONE_RANKS_KEY       the key in hexadecimal digits

A process that knows the key can run code on both sides, and TCP is not encrypted: use it in a trusted network
only.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any

from hone import __version__
from hone.train.errors import RankError

ADDRESS, KEY = "HONE_RANKS_ADDRESS", "HONE_RANKS_KEY"
CANCEL = "cancel"
LEAVE = "leave"  # the group of the engine servers
START = "start"  # the first call: (LearnerSpec, timeout in seconds)
CONNECT_S = 1800.0  # that a rank of another machine waits for the run
_RETRY_S = 0.5
_HANDSHAKE_S = 10.0


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a rank."""

    rank: int
    size: int
    pid: int
    versions: str


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call, or its error; `trace` is set for errors that are not HoneErrors."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""


class RankListener:
    """Accepts the connections of `ranks` ranks."""

    def __init__(self, address: str | None = None, key: bytes | None = None) -> None:
        """Listen on `address`, or on a new abstract socket of this machine. Raises RankError."""
        self.address = address or f"unix:hone-ranks-{secrets.token_hex(8)}"
        self.key = key or secrets.token_bytes(32)
        self.refused = 0  # connections with another key
        family, name = _parse(self.address)
        self._socket = socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET)
        try:
            if family == "tcp":
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(name)
            self._socket.listen(64)
        except OSError as error:
            self._socket.close()
            raise RankError(
                f"the run cannot listen for its ranks on {self.address} ({os.strerror(error.errno or 0)}): "
                f"set {ADDRESS} to a free address of this machine"
            ) from error

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a rank needs to connect."""
        return {ADDRESS: self.address, KEY: self.key.hex()}

    def accept(self, timeout_s: float) -> tuple[Hello, Connection] | None:
        """Return the next rank's connection; None if there is none in time or the peer has another key."""
        self._socket.settimeout(timeout_s)
        try:
            peer, _ = self._socket.accept()
        except TimeoutError:
            return None
        _limit_reads(peer, _HANDSHAKE_S)
        peer.setblocking(True)
        connection = Connection(peer.detach())
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            hello = connection.recv()
        except (AuthenticationError, EOFError, OSError) as error:
            self.refused += isinstance(error, AuthenticationError)
            connection.close()
            return None
        with socket.socket(fileno=os.dup(connection.fileno())) as again:
            _limit_reads(again, 0)
        return hello, connection

    def close(self) -> None:
        self._socket.close()


def ranks_elsewhere(environment: Mapping[str, str]) -> tuple[str, bytes] | None:
    """Return the address and the key for ranks that something else starts; None if neither is set.

    Raises RankError if one of them is missing or malformed.
    """
    unset = [name for name in (ADDRESS, KEY) if not environment.get(name)]
    if len(unset) == 2:
        return None
    if unset:
        raise RankError(f"{unset[0]} is not set: set {ADDRESS} and {KEY}, equal for the run and its ranks")
    _parse(environment[ADDRESS])
    try:
        return environment[ADDRESS], bytes.fromhex(environment[KEY])
    except ValueError:
        raise RankError(f"{KEY} is not in hexadecimal digits: make one with openssl rand -hex 32") from None


def connect(environment: Mapping[str, str], wait_s: float = CONNECT_S) -> Connection:
    """Return a rank's connection to the run, which may begin to listen on TCP up to `wait_s` later.

    Raises RankError without the variables, for another key, and if no run listens.
    """
    found = ranks_elsewhere(environment)
    if found is None:
        raise RankError(f"{ADDRESS} and {KEY} are not set: set them as for the run")
    address, key = found
    family, name = _parse(address)
    deadline = time.monotonic() + (wait_s if family == "tcp" else 0.0)
    while True:
        try:
            return Client(name, family="AF_UNIX" if family == "unix" else "AF_INET", authkey=key)
        except AuthenticationError:
            raise RankError(f"the run at {address} has another key: set {KEY} as for the run") from None
        except (EOFError, OSError) as error:
            if time.monotonic() >= deadline:
                raise RankError(
                    f"no run listens on {address} ({error}): start it, or correct {ADDRESS}"
                ) from error
        time.sleep(_RETRY_S)


def read_calls(
    connection: Connection, on_call: Callable[[Call], None], on_signal: Mapping[str, Callable[[], None]]
) -> None:
    """Hand over the run's messages until the connection ends; the loop of a thread.

    `on_signal`: by CANCEL and LEAVE; must not block.
    """
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv()
            if isinstance(message, Call):
                on_call(message)
            else:
                on_signal[message]()


def versions() -> str:
    """The packages that decide what a rank computes; equal in the run and its ranks."""
    others = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    return ", ".join([f"hone {__version__}", *others])


def _parse(address: str) -> tuple[str, Any]:
    family, _, rest = address.partition(":")
    if family == "unix" and rest:
        return family, f"\0{rest}"
    host, _, port = rest.rpartition(":")
    if family == "tcp" and host and port.isdigit():
        return family, (host, int(port))
    raise RankError(f"{ADDRESS} is {address!r}: write unix:NAME or tcp:HOST:PORT")


def _limit_reads(peer: socket.socket, seconds: float) -> None:
    """Let a blocking read fail after `seconds`; 0: never."""
    peer.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    )
