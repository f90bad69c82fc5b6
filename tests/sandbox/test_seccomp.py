"""The seccomp program decides as meant, on every architecture it is written for; interpreted here."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.sandbox import seccomp

ALLOWED = 0x7FFF0000
REFUSED = 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = pytest.mark.parametrize("machine", ARCHITECTURES)


def decide(machine: str, number: int, *arguments: int, arch: int | None = None, fixed: bool = False) -> int:
    """Return what bubblewrap's program decides about a call."""
    return run(seccomp.program(machine=machine, fixed_cores=fixed), machine, number, *arguments, arch=arch)


def run(program: bytes, machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Run the classic BPF program over a seccomp_data; return its value."""
    code = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    data = struct.pack(
        "=IIQ6Q", number, arch or ARCHITECTURES[machine], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6]
    )
    position, value = 0, 0
    while True:
        kind, if_true, if_false, operand = code[position]
        position += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif kind == 0x15:
            position += if_true if value == operand else if_false
        elif kind == 0x35:
            position += if_true if value >= operand else if_false
        elif kind == 0x45:
            position += if_true if value & operand else if_false
        else:
            assert kind == 0x06
            return operand


NUMBERS = {
    "x86_64": {
        "read": 0,
        "prctl": 157,
        "clone": 56,
        "clone3": 435,
        "mount": 165,
        "ptrace": 101,
        "ioctl": 16,
        "socket": 41,
    }
    | {"socketpair": 53, "unshare": 272, "keyctl": 250, "execve": 59, "sched_setaffinity": 203},
    "aarch64": {
        "read": 63,
        "prctl": 167,
        "clone": 220,
        "clone3": 435,
        "mount": 40,
        "ptrace": 117,
        "ioctl": 29,
    }
    | {"socket": 198, "socketpair": 199, "unshare": 97, "keyctl": 219, "execve": 221}
    | {"sched_setaffinity": 122},
}


LIMITED = {
    "x86_64": {"setsockopt": 54, "prlimit64": 302, "sched_setaffinity": 203, "setpriority": 141, "prctl": 157,
               "ioprio_set": 251, "io_setup": 206, "seccomp": 317, "mmap": 9, "memfd_create": 319,
               "shmget": 29},
    "aarch64": {"setsockopt": 208, "prlimit64": 261, "sched_setaffinity": 122, "setpriority": 140,
                "prctl": 167, "ioprio_set": 30, "io_setup": 0, "seccomp": 277, "mmap": 222,
                "memfd_create": 279, "shmget": 194},
}  # fmt: skip


@MACHINES
def test_ordinary_calls_pass_and_denied_calls_fail(machine: str) -> None:
    number = NUMBERS[machine]
    for name in ("read", "execve", "sched_setaffinity"):
        assert decide(machine, number[name]) == ALLOWED, name
    for name in ("mount", "ptrace", "unshare", "keyctl"):
        assert decide(machine, number[name]) == REFUSED | errno.EPERM, name
    assert decide(machine, number["sched_setaffinity"], fixed=True) == REFUSED | errno.EPERM


@MACHINES
def test_clone_cannot_make_namespaces(machine: str) -> None:
    clone = NUMBERS[machine]["clone"]
    assert decide(machine, clone, 17) == ALLOWED
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, clone, flag | 17) == REFUSED | errno.EPERM
    assert decide(machine, NUMBERS[machine]["clone3"]) == REFUSED | errno.ENOSYS


@MACHINES
def test_processes_cannot_leave_the_tree_of_their_command(machine: str) -> None:
    program, number = seccomp.init_program(machine), NUMBERS[machine]
    for call, *arguments in (("read",), ("clone", 17), ("prctl", 36, 1), ("prctl", 4, 0), ("mount",)):
        assert run(program, machine, number[call], *arguments) == ALLOWED, call
    for call, *arguments in (("clone", 0x8000 | 17), ("prctl", 36, 0)):
        assert run(program, machine, number[call], *arguments) == REFUSED | errno.EPERM, call
    assert run(program, machine, number["clone3"]) == REFUSED | errno.ENOSYS
    assert run(program, machine, number["read"], arch=1) == REFUSED | errno.ENOSYS


@MACHINES
def test_stores_of_the_machine_and_process_1_are_out_of_reach(machine: str) -> None:
    program, number = seccomp.init_program(machine), LIMITED[machine]
    denied = {
        errno.EPERM: [("setsockopt", 3, 1, 26), ("setsockopt", 3, 1, 51), ("setsockopt", 3, 41, 32),
                      ("prlimit64", 1), ("prlimit64", 1 | 1 << 32), ("sched_setaffinity", 1),
                      ("setpriority", 0, 1), ("setpriority", 1, 1), ("setpriority", 2, 0),
                      ("ioprio_set", 1, 1), ("ioprio_set", 3, 0)],
        errno.ENOSYS: [("io_setup", 1)],
        errno.EINVAL: [("seccomp", 1), ("prctl", 22, 2)],
        errno.ENOMEM: [("mmap", 0, 1, 3, 0x40022), ("memfd_create", 0, 4), ("shmget", 0, 1, 0o4600)],
    }  # fmt: skip
    for code, calls in denied.items():
        for call, *arguments in calls:
            assert run(program, machine, number[call], *arguments) == REFUSED | code, (call, arguments)
    ordinary = [("setsockopt", 3, 1, 2), ("setsockopt", 3, 6, 26), ("setsockopt", 3, 41, 26),
                ("prlimit64", 0), ("prlimit64", 11), ("sched_setaffinity", 0), ("setpriority", 0, 0),
                ("ioprio_set", 1, 0),
                ("seccomp", 2), ("prctl", 22, 1), ("prctl", 38, 2), ("mmap", 0, 1, 3, 0x22),
                ("memfd_create", 0, 1), ("shmget", 0, 1, 0o1600)]  # fmt: skip
    for call, *arguments in ordinary:
        assert run(program, machine, number[call], *arguments) == ALLOWED, (call, arguments)


@MACHINES
def test_process_1_is_asked_before_ip_and_routing_sockets(machine: str) -> None:
    ask, plain = seccomp.init_program(machine, notify_sockets=True), seccomp.init_program(machine)
    call = NUMBERS[machine]["socket"]
    for arguments in ((2, 1, 0), (2, 1 | 0o2004000, 6), (2, 2, 17), (10, 1, 0), (10, 2, 17), (16, 3, 0)):
        assert run(ask, machine, call, *arguments) == 0x7FC00000, arguments
        assert run(plain, machine, call, *arguments) == ALLOWED, arguments
    for program in (ask, plain):
        assert run(program, machine, call, 1, 1, 0) == ALLOWED
        for family, protocol in ((2, 262), (2, 132), (2, 33), (2, 136), (10, 262), (10, 256)):
            wanted = REFUSED | errno.EPROTONOSUPPORT
            assert run(program, machine, call, family, 1, protocol) == wanted, (family, protocol)


@MACHINES
def test_terminal_injection_is_denied(machine: str) -> None:
    ioctl = NUMBERS[machine]["ioctl"]
    assert decide(machine, ioctl, 0, 0x5413) == ALLOWED
    for request in (0x5412, 0x541C):
        assert decide(machine, ioctl, 0, request) == REFUSED | errno.EPERM
        assert (
            decide(machine, ioctl, 0, request | 1 << 32) == REFUSED | errno.EPERM
        )  # the kernel takes 32 bits


@MACHINES
@given(family=st.integers(0, 50), kind=st.integers(1, 5), protocol=st.integers(0, 30))
def test_only_four_socket_families_are_allowed(machine: str, family: int, kind: int, protocol: int) -> None:
    useful = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) or (family, protocol) == (16, 0)
    for call in ("socket", "socketpair"):
        wanted = ALLOWED if useful else REFUSED | errno.EAFNOSUPPORT
        assert decide(machine, NUMBERS[machine][call], family, kind, protocol) == wanted


@MACHINES
@given(number=st.integers(0, 0xFFFFFFFF), arch=st.integers(0, 0xFFFFFFFF))
def test_calls_of_another_architecture_are_missing(machine: str, number: int, arch: int) -> None:
    if arch not in ARCHITECTURES.values() and arch:
        assert decide(machine, number, arch=arch) == REFUSED | errno.ENOSYS


@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_x32_calls_are_missing(number: int) -> None:
    assert decide("x86_64", number) == REFUSED | errno.ENOSYS


def test_unsupported_architecture_is_refused() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program(machine="riscv64")
