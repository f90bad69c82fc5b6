"""Buffers of sockets: a sandbox holds little more of them than its memory limit, by whatever socket."""

from __future__ import annotations

import pytest

from hone.sandbox import Limits, Sandbox, SandboxSpec
from tests.attacks.sandbox.attack_target import AttackTarget, attack

SMALL = Limits(memory_mib=96, pids=24, disk_mib=8)
GOAL_MIB = 192

_CODE = """
import resource, socket, struct
goal, held, total = int(arguments[0]) << 20, [], 0
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
def opened(*kind):
    held.append(socket.socket(*kind))
    for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        held[-1].setsockopt(socket.SOL_SOCKET, name, 4 << 20)
    return held[-1]
def filled(own, piece):
    own.setblocking(False)
    sent = 0
    while True:
        try: sent += own.send(piece)
        except BlockingIOError: return sent
def connect(server, family, protocol):
    client = opened(family, socket.SOCK_STREAM, protocol)
    client.connect(server.getsockname()[:2])
    held.append(server.accept()[0])
    return filled(client, bytes(1 << 16)) + filled(held[-1], bytes(1 << 16))
def queued(table, column):
    rows = [row.split()[column] for row in open("/proc/net/" + table).read().splitlines()[1:]]
    return sum(int(row.split(":")[1], 16) if ":" in row else int(row) for row in rows)
"""
KINDS = {
    "TCP": ("server = socket.create_server(('127.0.0.1', 0))", "total += connect(server, socket.AF_INET, 0)"),
    "TCP over IPv6": (
        "server = socket.create_server(('::1', 0), family=socket.AF_INET6)",
        "total += connect(server, socket.AF_INET6, 0)",
    ),
    "MPTCP": (
        "server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); "
        "server.bind(('127.0.0.1', 0)); server.listen()",
        "total += connect(server, socket.AF_INET, 262)",
    ),
    "UDP received": (
        "",
        """
    receiver = opened(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    for _ in range(150): sender.send(bytes(60_000))
    total = queued("udp", 4)
""",
    ),
    "UDP not sent": (
        "",
        """
    sender = opened(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", 9))
    total += sender.send(bytes(60_000), socket.MSG_MORE)
""",
    ),
    "routing": (
        "links = struct.pack('IHHIIBxHiII', 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0)",
        """
    asker = opened(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    asker.setblocking(False)
    try:
        for _ in range(1500): asker.send(links)
    except OSError: pass
    total = queued("netlink", 4)
""",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_socket_buffers_are_limited(attacked: AttackTarget, kind: str) -> None:
    before, step = KINDS[kind]
    code = f"""{_CODE}
try:
    {before or "pass"}
    while total < goal:
        {step.strip().replace(chr(10), chr(10) + "    ")}
except OSError as error: tell("all of it", None, str(error))
else: tell("all of it", True)
"""
    attacked.assert_contained(code, str(GOAL_MIB), limits=SMALL)


def test_sockets_work_up_to_their_bound_and_again(attacked: AttackTarget) -> None:
    """The honest control: servers, clients, datagrams and interfaces; refused sockets open later."""
    code = """
import socket, threading
def exchange():
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            with server.accept()[0] as own:
                while data := own.recv(1 << 16): own.sendall(data)
        threading.Thread(target=serve).start()
        with socket.create_connection(server.getsockname()) as client:
            def send():
                client.sendall(bytes(1 << 20))
                client.shutdown(socket.SHUT_WR)
            threading.Thread(target=send).start()
            total = 0
            while data := client.recv(1 << 16): total += len(data)
            return total == 1 << 20
def datagrams():
    with socket.socket(type=socket.SOCK_DGRAM) as own, socket.socket(type=socket.SOCK_DGRAM) as other:
        own.bind(("127.0.0.1", 0))
        other.sendto(b"x" * 60_000, own.getsockname())
        return len(own.recv(1 << 16)) == 60_000
def kept(most):
    held = []
    try:
        for _ in range(most): held.append(socket.socket())
    finally:
        for own in held: own.close()
    return True
attempt("exchange", exchange)
attempt("datagrams", datagrams)
attempt("interfaces", lambda: socket.if_nameindex() == [(1, "lo")])
attempt("names", lambda: socket.getaddrinfo("localhost", 80))
attempt("one after the other", lambda: all(kept(1) for _ in range(500)))
attempt("150 at a time", kept, 150)
attempt("too many", kept, 1000)
attempt("150 again", kept, 150)
"""

    async def act(sandbox: Sandbox) -> None:
        found = await attack(sandbox, code)
        assert found.refused == {"too many": "ENOBUFS"}

    attacked.run(act, SandboxSpec(limits=SMALL))
