"""The proxy as programs know it: a TCP port on the loopback, joined to the proxy's unix socket.

A process of its own, forked from process 1 where a sandbox has an allow-list. It knows nothing and guards
nothing: the host's end of the socket decides where a connection may go.
"""

import _socket
import posix as os
import select

_BACKLOG, _HALF = 64, 1 << 16  # bytes held of each direction


class End:
    """One direction of a joined pair: what was read from `source` and not yet written to `sink`."""

    def __init__(self, source: _socket.socket, sink: _socket.socket) -> None:
        self.source, self.sink = source, sink
        self.held, self.ended = b"", False


def start(port: int, path: str) -> None:
    """Listen, then fork the process that relays. Raises OSError."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    if os.fork() == 0:
        try:
            _relay(listener, path)
        finally:
            os._exit(1)
    listener.close()


def _relay(listener: _socket.socket, path: str) -> None:
    ends: list[End] = []
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


def _accept(listener: _socket.socket, path: str) -> list[End]:
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
    return [End(client, proxy), End(proxy, client)]


def _move(end: End) -> None:
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


def _without_ended(ends: list[End]) -> list[End]:
    """Close the pairs of which both directions have ended, or one was broken off."""
    kept: list[End] = []
    for one, other in zip(ends[::2], ends[1::2], strict=True):
        if one.ended and other.ended:
            one.source.close()
            one.sink.close()
        else:
            kept += [one, other]
    return kept
