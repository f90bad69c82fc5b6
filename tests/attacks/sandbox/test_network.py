"""No address, socket or protocol leads out of a sandbox that was given no network."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.sandbox.attack_target import APART, AttackTarget
from tests.services.answering import answering

# In a network namespace of its own, the control has every address there is, and someone who answers there.
EVERYWHERE = """
import socket, subprocess, threading
for command in ("link set lo up", "addr add 169.254.169.254/32 dev lo", "addr add fd00:ec2::254/128 dev lo",
                "addr add 10.0.0.1/8 dev lo", "addr add 172.17.0.1/16 dev lo",
                "route add default dev lo", "-6 route add default dev lo", "addr add 1.1.1.1/32 dev lo"):
    subprocess.run(["ip", *command.split()], check=True)
for family, address in ((socket.AF_INET, ("0.0.0.0", 80)), (socket.AF_INET6, ("::", 80))):
    server = socket.socket(family)
    if family == socket.AF_INET6: server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(address); server.listen()
    def answer(server=server):
        while True: server.accept()[0].sendall(b"hello")
    threading.Thread(target=answer, daemon=True).start()
"""
CONNECT = """
import socket
def connect(host, port=80):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(20)
        s.connect((host, port))
        return s.recv(5)
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A server on all addresses of the host, as a node's own port is."""
    with answering("0.0.0.0", b"hello") as port:
        yield port


def test_host_port_is_unreachable(attacked: AttackTarget, port: int) -> None:
    addresses = {"127.0.0.1", "127.0.1.1", "0.0.0.0"} | {
        str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    }
    code = CONNECT + "for host in arguments[1:]: attempt(host, connect, host, int(arguments[0]))"
    attacked.assert_denied(code, str(port), *sorted(addresses))


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "10.0.0.1", "172.17.0.1", "1.1.1.1"])
def test_no_address_is_reachable(attacked: AttackTarget, address: str) -> None:
    """The metadata service, by both protocols; a private network; a bridge of containers; the world."""
    code = CONNECT + "attempt(arguments[0], connect, arguments[0])"
    attacked.assert_denied(code, address, wrapped=APART, before=EVERYWHERE)


def test_datagrams_and_pings_are_blocked(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
import socket
def send(kind, protocol, data, host, port):
    with socket.socket(socket.AF_INET, kind, protocol) as s:
        return s.sendto(data, (host, port))
attempt("a name is resolved", send, socket.SOCK_DGRAM, 0, b"?", "1.1.1.1", 53)
attempt("broadcast", lambda: send(socket.SOCK_DGRAM, 0, b"?", "10.255.255.254", 67))
attempt("raw", send, socket.SOCK_RAW, socket.IPPROTO_ICMP, bytes([8, 0, 247, 255, 0, 0, 0, 0]), "1.1.1.1", 0)
def multicast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return s.sendto(b"?", ("224.0.0.251", 5353))
attempt("multicast", multicast)
""",
        wrapped=APART,
        before=EVERYWHERE,
    )


def test_unix_sockets_of_the_host_are_unreachable(attacked: AttackTarget, tmp_path: Path) -> None:
    name = f"hone-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(tmp_path / "s"))
        named.listen()
        attacked.assert_denied(
            """
import socket
def connect(address):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(address)
    return True
attempt("abstract", connect, chr(0) + arguments[0])
attempt("in a directory", connect, arguments[1])
attempt("in the list", lambda: arguments[0] in open("/proc/net/unix").read())
attempt("through another root", connect, f"/proc/{arguments[2]}/root{arguments[1]}")
""",
            name,
            str(tmp_path / "s"),
            "1",
            outside=(name, str(tmp_path / "s"), "self"),
        )


def test_host_connections_are_hidden(attacked: AttackTarget, port: int) -> None:
    attacked.assert_denied(
        """
wanted = f":{int(arguments[0]):04X} "
for view, process in (("its own view", "self"), ("another's view", arguments[1])):
    attempt(view, lambda: wanted in open(f"/proc/{process}/net/tcp").read())
""",
        str(port),
        "1",
        outside=(str(port), str(os.getpid())),
    )


def test_network_configuration_is_denied(attacked: AttackTarget) -> None:
    """Addresses, routes, links, packet filters."""
    attacked.assert_denied(
        """
import fcntl, socket, struct
def set_mtu():
    with socket.socket() as s:
        return fcntl.ioctl(s, 0x8922, struct.pack("16si16x", b"lo", 1400))
attempt("a setting of a link", set_mtu)
def ask(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("IHHII", 16 + len(body), kind, 5 | 0x600, 1, 0) + body)
        (number,) = struct.unpack_from("i", s.recv(4096), 16)
        if number: raise OSError(-number, "refused")
    return True
address = struct.pack("BBBBI", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 9, 9, 9]))
route = struct.pack("8BI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + struct.pack("HHI", 8, 4, 1)
rule = struct.pack("8BI", 2, 0, 0, 0, 254, 0, 0, 1, 0)
for name, kind, body in (("an address", 20, address), ("a route", 24, route), ("a rule", 32, rule)):
    attempt(name, ask, kind, body)
""",
        wrapped=APART,
        before='import subprocess\nsubprocess.run(["ip", "link", "set", "lo", "up"], check=True)',
    )


def test_rare_socket_families_are_denied(attacked: AttackTarget) -> None:
    """Each is a door into kernel code that few people look at, one of them to the machine's hypervisor."""
    attacked.assert_denied(
        """
import socket
families = {"packet": (17, 3, 768), "cryptography": (38, 5, 0), "hypervisor": (40, 1, 0), "xdp": (44, 3, 0),
            "bluetooth": (31, 3, 1), "can": (29, 3, 1), "tipc": (30, 5, 0), "ipsec": (15, 3, 2),
            "rds": (21, 5, 0)}
for name, numbers in families.items():
    attempt(name, lambda: socket.socket(*numbers).fileno())
"""
    )


def test_netlink_allows_the_route_protocol_only(attacked: AttackTarget) -> None:
    """Which programs ask for their addresses; the rest is for the administrator, and has had its holes."""
    attacked.assert_denied(
        """
import socket
protocols = {"sockets": 4, "ipsec": 6, "audit": 9, "packet filter": 12, "devices": 15, "generic": 16,
             "rdma": 20, "cryptography": 21}
for name, number in protocols.items():
    attempt(name, lambda: socket.socket(16, 3, number).fileno())
"""
    )
