"""Connections of HTTP servers: none is kept open by a client that sends or reads nothing.

Time limits, checked once per second: of a request's line and headers, of the rest of a body after its
response, of a response that is not read, and (uvicorn's own) of an idle connection. A server that has too
many connections closes the one that has waited longest for a request.
"""

from __future__ import annotations

import resource
from typing import Any, cast

import uvicorn.server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # from connecting, or the first byte of a later request, to the end of its line and headers
REST_S = 20.0  # for the rest of a body whose response is complete, so that the client can read it
UNREAD_S = 60.0  # for a client to read _PROGRESS of a response
_PROGRESS = 1 << 16  # bytes
_MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers together
_CONNECTIONS_MAX = 32_768  # with a request or without


def connections_max() -> int:
    """Return how many connections this process may keep; half of its descriptors are for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else min(_CONNECTIONS_MAX, soft // 2)


class ServerState(uvicorn.server.ServerState):
    """The connections of a server."""

    def __init__(self) -> None:
        super().__init__()
        self.without_request: dict[HttpProtocol, None] = {}  # the longest wait first
        self.limit = connections_max()

    def close_late(self, now: float) -> None:
        """Close the connections whose time is up at `now` (of the event loop)."""
        for connection in list(self.connections):
            if isinstance(connection, HttpProtocol):
                connection.close_if_late(now)

    def make_room(self) -> None:
        """Close the connection that has waited longest for a request, if there are more than `limit`."""
        if len(self.connections) > self.limit and self.without_request:
            oldest = next(iter(self.without_request))
            del self.without_request[oldest]
            oldest.transport.abort()


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on the time and size of a request's head; too large a head gets status 400."""

    _deadline: float | None = None  # of the event loop, for what the client has to send
    _body_ended = True
    _unread: tuple[int, float] | None = None  # bytes of responses that wait for the client, and since when
    _in_head = False
    _parsed = _received = 0  # bytes of the head; the parser holds back a header until it is complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._state = cast("ServerState", self.server_state)
        self._without_request = self._state.without_request
        self._wait_for_request(HEAD_S)
        self._state.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._without_request.pop(self, None)
        super().connection_lost(exc)

    def _wait_for_request(self, limit_s: float | None) -> None:
        self._without_request[self] = None
        self._deadline = None if limit_s is None else self.loop.time() + limit_s

    def close_if_late(self, now: float) -> None:
        """Close the connection if its client had to send something, or to read a response, before `now`."""
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self.transport.close()
        left = self.transport.get_write_buffer_size()
        if left == 0:
            self._unread = None
        elif self._unread is None or left <= self._unread[0] - _PROGRESS:
            self._unread = (left, now)
        elif now - self._unread[1] >= UNREAD_S:
            self.transport.abort()

    # --- requests

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._parsed, self._received = True, 0, 0
        self._body_ended = False

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # with ": " and the line end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._deadline = None
        self._without_request.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._body_ended = True

    def data_received(self, data: bytes) -> None:
        in_head = self._in_head
        super().data_received(data)
        if self in self._without_request and self._deadline is None:
            self._deadline = self.loop.time() + HEAD_S  # uvicorn has stopped its own timer
        if in_head and self._in_head and not self.transport.is_closing():
            self._received += len(data)
            if self._received > _MAX_HEAD_BYTES:
                self.send_400_response("Request head too large.")

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > _MAX_HEAD_BYTES:
            raise ValueError("request head too large")  # which the parser turns into status 400

    # --- responses

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:  # no other request is under way
            self._wait_for_request(None if self._body_ended else REST_S)

    def resume_writing(self) -> None:
        self._unread = None  # the client has read nearly all of a response that is sent in pieces
        super().resume_writing()
