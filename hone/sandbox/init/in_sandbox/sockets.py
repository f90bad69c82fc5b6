"""Decide whether a command may open one more socket.

The kernel gives every socket the buffers of its first packet, whatever the memory limit, and never counts
those of routing sockets. So the number of sockets is bounded: seccomp's user notification asks process 1.
"""

import _struct as struct
import errno
import fcntl
import posix as os

_RECEIVE, _RESPOND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
_REQUEST = struct.Struct("=QII iIQ 6Q")  # seccomp_notif: id, pid, flags, seccomp_data
_RESPONSE = struct.Struct("=QqiI")  # seccomp_notif_resp: id, value, error, flags
_CONTINUE = 1
_NETLINK, _ROUTING_MAX = 16, 8  # routing sockets at a time: each lives for one question about interfaces


def answer(listener: int, most: int) -> None:
    """Let one waiting command open its socket, or refuse it with ENOBUFS where there are `most` already."""
    request = bytearray(_REQUEST.size)
    try:
        _ioctl(listener, _RECEIVE, request)
        number, *_, family, _, _, _, _, _ = _REQUEST.unpack(request)
        allowed = _count() < most and (family & 0xFFFFFFFF != _NETLINK or _count_routing() < _ROUTING_MAX)
        error, flags = (0, _CONTINUE) if allowed else (-errno.ENOBUFS, 0)
        _ioctl(listener, _RESPOND, bytearray(_RESPONSE.pack(number, 0, error, flags)))
    except OSError as failure:
        if failure.errno != errno.ENOENT:  # the command was killed meanwhile
            raise


def _ioctl(listener: int, call: int, argument: bytearray) -> None:
    while True:
        try:
            fcntl.ioctl(listener, call, argument)
            return
        except InterruptedError:  # Python itself does not call it again
            continue


def _count() -> int:
    """Return the number of sockets in this network namespace."""
    return int(_read(b"/proc/self/net/sockstat").split(None, 3)[2])


def _count_routing() -> int:
    """Return the number of routing sockets of processes; those of the kernel have port 0."""
    rows = [row.split() for row in _read(b"/proc/self/net/netlink").splitlines()[1:]]
    return sum(row[1] == b"0" and row[2] != b"0" for row in rows)


def _read(path: bytes) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)
