"""Forward a TCP port of the sandbox's loopback to a unix socket, such as the proxy's.

It runs in a separate process. It enforces nothing: the host's end of the socket decides where connections go.
"""

import _socket
import posix as os
import select

_BACKLOG, _HALF = 64, 1 << 16  # bytes held of each direction


class Direction:
    """One direction of a connection; `held` was read from `source` but not written to `sink` yet."""

    def __init__(self, source: _socket.socket, sink: _socket.socket) -> None:
        self.source, self.sink = source, sink
        self.held, self.ended = b"", False


def listen(port: int) -> _socket.socket:
    """Return a socket that listens on a loopback port. Raises OSError."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def start(listener: _socket.socket, path: str) -> None:
    """Fork the relay process. Raises OSError."""
    if os.fork() == 0:
        try:
            _relay(listener, path)
        finally:
            os._exit(1)
    listener.close()


def _relay(listener: _socket.socket, path: str) -> None:
    ends: list[Direction] = []
    while True:
        poll = select.poll()
        poll.register(listener.fileno(), select.POLLIN)
        masks: dict[int, int] = {}
        for end in ends:
            if end.held:
                masks[end.sink.fileno()] = masks.get(end.sink.fileno(), 0) | select.POLLOUT
            elif not end.ended:
                masks[end.source.fileno()] = masks.get(end.source.fileno(), 0) | select.POLLIN
        for fd, mask in masks.items():
            poll.register(fd, mask)
        ready = {fd for fd, _ in poll.poll()}
        if listener.fileno() in ready:
            ends += _accept(listener, path)
        for end in ends:
            if (end.sink if end.held else end.source).fileno() in ready:
                _move(end)
        ends = _without_ended(ends)


def _accept(listener: _socket.socket, path: str) -> list[Direction]:
    fd, _ = listener._accept()  # type: ignore[attr-defined]
    client = _socket.socket(fileno=fd)
    proxy = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        proxy.connect(path)
    except OSError:
        client.close()
        proxy.close()
        return []
    client.setblocking(False)
    proxy.setblocking(False)
    return [Direction(client, proxy), Direction(proxy, client)]


def _move(end: Direction) -> None:
    try:
        if not end.held:
            end.held = end.source.recv(_HALF)
            if not end.held:
                end.ended = True
                end.sink.shutdown(_socket.SHUT_WR)
                return
        end.held = end.held[end.sink.send(end.held) :]
    except BlockingIOError:
        return
    except OSError:
        end.held, end.ended = b"", True


def _without_ended(ends: list[Direction]) -> list[Direction]:
    """Close the connections whose directions have both ended; return the others."""
    kept: list[Direction] = []
    for one, other in zip(ends[::2], ends[1::2], strict=True):
        if one.ended and other.ended:
            one.source.close()
            one.sink.close()
        else:
            kept += [one, other]
    return kept
