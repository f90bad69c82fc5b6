"""The attach stream is demultiplexed wherever it is cut, and a bad response raises an error."""

from __future__ import annotations

import asyncio
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.sandbox.docker.engine import AttachRefused, AttachStream
from hone.sandbox.init.channel import Channel

HEAD = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


class Recorder(Channel):
    """A channel that keeps what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


class Wire(asyncio.Transport):
    """A transport that records its writes and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.aborted = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def _feed(data: bytes, cuts: list[int]) -> tuple[AttachStream, Recorder, Wire]:
    async def run() -> tuple[AttachStream, Recorder, Wire]:
        channel, wire = Recorder(), Wire()
        stream = AttachStream(b"POST /attach", channel)
        stream.connection_made(wire)
        places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for start, end in itertools.pairwise(places):
            stream.data_received(data[start:end])
        return stream, channel, wire

    return asyncio.run(run())


@given(PIECES, st.lists(st.integers(0, 1000), max_size=12))
def test_stdout_reaches_the_channel_complete(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    framed = b"".join(struct.pack("!BxxxI", kind, len(data)) + data for kind, data in pieces)
    stream, channel, wire = _feed(HEAD + framed, cuts)
    assert stream.upgraded.done()
    assert channel.received == b"".join(data for kind, data in pieces if kind == 1)
    assert bytes(stream.errors) == b"".join(data for kind, data in pieces if kind == 2)
    assert wire.written == b"POST /attach"


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=6))
def test_arbitrary_engine_response_raises_nothing(data: bytes, cuts: list[int]) -> None:
    _feed(data, cuts)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\n\r\n{'message': 'No such container'}",
        b"HTTP/1.1 409 Conflict\r\n\r\n",
        b"rubbish\r\n\r\n",
        b"x" * (1 << 17),
    ],
)
def test_refused_attach_raises_the_engines_message(answer: bytes) -> None:
    stream, channel, wire = _feed(answer, [])
    assert isinstance(stream.upgraded.exception(), AttachRefused)
    assert wire.aborted
    assert channel.received == b""


def test_disconnect_before_the_response_raises() -> None:
    async def run() -> None:
        stream = AttachStream(b"POST /attach", Recorder())
        stream.connection_made(Wire())
        stream.connection_lost(None)
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await stream.upgraded

    asyncio.run(run())
