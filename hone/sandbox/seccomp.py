"""Deny lists of system calls for sandboxes: classic BPF programs for seccomp(2).

Denied calls return EPERM, calls of another architecture ENOSYS. Filters add up: a process may have both.
Numbers: the kernel's syscall tables; classic BPF: Documentation/networking/filter.rst.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import socket
import struct
from dataclasses import dataclass

_CLONE_NEW = 0x7E020080  # every CLONE_NEW* flag: time, ns (mount), cgroup, uts, ipc, user, pid, net
_TERMINAL_INJECTION = (0x5412, 0x541C)  # ioctl TIOCSTI, TIOCLINUX
_SOCKETS = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_PROTOCOLS = (0, socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMPV6,
              socket.IPPROTO_RAW)  # fmt: skip
_NETLINK, _NETLINK_ROUTE = 16, 0  # the only netlink protocol that programs use: to list interfaces

# name -> number on (x86_64, aarch64); None where the architecture has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "setns": (308, 268), "unshare": (272, 97), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "swapon": (167, 224), "swapoff": (168, 225),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "vhangup": (153, 58), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "_sysctl": (156, None),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "memfd_secret": (447, 447),
}  # fmt: skip
_SET_AFFINITY = (203, 122)
_LIMITED = {  # denied by their arguments: name -> number on (x86_64, aarch64)
    "seccomp": (317, 277), "io_setup": (206, 0), "setsockopt": (54, 208), "mmap": (9, 222),
    "memfd_create": (319, 279), "shmget": (29, 194), "prlimit64": (302, 261),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "sched_setaffinity": _SET_AFFINITY, "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
_CLONE_PARENT = 0x8000
_PR_SET_CHILD_SUBREAPER, _PR_SET_SECCOMP = 36, 22
_SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER = 2, 1
_SOL_SOCKET, _SOL_IPV6 = 1, 41
# (level, name) of the socket options that take from a store of the machine: compiled filters of a socket
# (SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF), and IPv6 flow labels.
_OPTIONS = (*((_SOL_SOCKET, name) for name in (26, 50, 51, 52)), (_SOL_IPV6, 32))


@dataclass(frozen=True, slots=True)
class _Architecture:
    column: int
    audit: int  # AUDIT_ARCH_*, as seccomp_data shows it
    clone: int
    prctl: int
    ioctl: int
    socket: int
    socketpair: int

    def number(self, name: str) -> int:
        """Return the number of one of _LIMITED."""
        return _LIMITED[name][self.column]


_ARCHITECTURES = {
    "x86_64": _Architecture(0, 0xC000003E, clone=56, prctl=157, ioctl=16, socket=41, socketpair=53),
    "aarch64": _Architecture(1, 0xC00000B7, clone=220, prctl=167, ioctl=29, socket=198, socketpair=199),
}
_CLONE3 = 435  # on both; passes its flags by pointer; without it the C library falls back to clone
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# offsets in seccomp_data (little endian)
_NUMBER, _AUDIT = 0, 4
_FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 16, 24, 32, 40
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

# Call -> its argument with flags, and the flag that takes huge pages. The machine has one pool of them, which
# no memory limit counts.
_HUGE_PAGES = {
    "mmap": (_FOURTH_ARGUMENT, 0x40000),
    "memfd_create": (_SECOND_ARGUMENT, 4),
    "shmget": (_THIRD_ARGUMENT, 0o4000),
}
_PRIORITIES = {"setpriority": 2, "ioprio_set": 3}  # call -> its first argument for all processes of a user

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
_DENY: Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_MISSING: Instruction = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
_NOTIFY: Instruction = (_RETURN, 0, 0, 0x7FC00000)
_INVALID: Instruction = (_RETURN, 0, 0, _ERRNO | errno.EINVAL)
_NO_MEMORY: Instruction = (_RETURN, 0, 0, _ERRNO | errno.ENOMEM)
_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)


@functools.cache
def program(*, fixed_cores: bool = False, machine: str | None = None) -> bytes:
    """Return the program for bubblewrap. Raises OSError(ENOSYS) for an unsupported architecture.

    It comes on top of namespaces, dropped capabilities and no_new_privs, and removes calls that ordinary
    programs never need and where kernels have had holes (new namespaces and mounts, keyrings, BPF, io_uring,
    tracing, file handles, rare socket families).

    Args:
        fixed_cores: deny changes of the CPU affinity.
        machine: architecture as uname gives it; default this machine's.
    """
    arch = _architecture(machine)
    code: list[Instruction] = []
    for numbers in [*_DENIED.values(), *([_SET_AFFINITY] if fixed_cores else [])]:
        number = numbers[arch.column]
        if number is not None:
            code += [(_JUMP_EQUAL, 0, 1, number), _DENY]
    code += [(_JUMP_EQUAL, 0, 4, arch.clone), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_JUMP_SET, 0, 1, _CLONE_NEW), _DENY, _PASS]
    code += [(_JUMP_EQUAL, 0, 5, arch.ioctl), (_LOAD, 0, 0, _SECOND_ARGUMENT)]
    code += [(_JUMP_EQUAL, 1, 0, _TERMINAL_INJECTION[0]), (_JUMP_EQUAL, 0, 1, _TERMINAL_INJECTION[1]), _DENY]
    code += [_PASS]
    code += _only_families(arch.socket) + _only_families(arch.socketpair)
    return _assemble(arch, code)


@functools.cache
def init_program(machine: str | None = None, *, notify_sockets: bool = False) -> bytes:
    """Return the program that process 1 of a sandbox installs for itself and its commands.

    It keeps processes in the tree of their command, so that they are killed with it: trees are found by
    parent ids, and each command is the subreaper of its orphans, which clone with CLONE_PARENT and
    prctl(PR_SET_CHILD_SUBREAPER, 0) would undo. It denies changes of process 1 itself, and calls that take
    from a store of the whole machine, each as a kernel without that feature does. IP sockets are limited to
    the common protocols: others have buffers and stores of their own. Raises as `program` does.

    Args:
        notify_sockets: ask process 1 before each IP or routing socket (SECCOMP_RET_USER_NOTIF).
    """
    arch = _architecture(machine)
    allow_parent = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_JUMP_SET, 0, 1, _CLONE_PARENT), _DENY, _PASS]
    code = _rule(arch.clone, allow_parent)
    leave = _match(_DENY, (_FIRST_ARGUMENT, _PR_SET_CHILD_SUBREAPER), (_SECOND_ARGUMENT, 0))
    install = _match(_INVALID, (_FIRST_ARGUMENT, _PR_SET_SECCOMP), (_SECOND_ARGUMENT, _SECCOMP_MODE_FILTER))
    code += _rule(arch.prctl, [*leave, *install, _PASS])
    code += _rule(
        arch.number("seccomp"), [*_match(_INVALID, (_FIRST_ARGUMENT, _SECCOMP_SET_MODE_FILTER)), _PASS]
    )
    code += _rule(arch.number("io_setup"), [_MISSING])
    options = [_match(_DENY, (_SECOND_ARGUMENT, level), (_THIRD_ARGUMENT, name)) for level, name in _OPTIONS]
    code += _rule(arch.number("setsockopt"), [*itertools.chain(*options), _PASS])
    for name, (argument, flag) in _HUGE_PAGES.items():
        code += _rule(
            arch.number(name), [(_LOAD, 0, 0, argument), (_JUMP_SET, 0, 1, flag), _NO_MEMORY, _PASS]
        )
    for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity"):
        code += _rule(arch.number(name), [*_match(_DENY, (_FIRST_ARGUMENT, 1)), _PASS])
    for name, all_of_user in _PRIORITIES.items():
        whose = _match(_DENY, (_FIRST_ARGUMENT, all_of_user)) + _match(_DENY, (_SECOND_ARGUMENT, 1))
        code += _rule(arch.number(name), [*whose, _PASS])
    code += _rule(arch.socket, _new_socket(_NOTIFY if notify_sockets else _PASS))
    return _assemble(arch, code)


def _new_socket(action: Instruction) -> list[Instruction]:
    """Return code that ends with `action` for routing sockets and _PROTOCOLS, and passes unix sockets."""
    code: list[Instruction] = [(_LOAD, 0, 0, _THIRD_ARGUMENT)]
    for index, protocol in enumerate(_PROTOCOLS):
        code.append((_JUMP_EQUAL, len(_PROTOCOLS) - index, 0, protocol))
    code += [(_RETURN, 0, 0, _ERRNO | errno.EPROTONOSUPPORT), action]
    family: list[Instruction] = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    family += [(_JUMP_EQUAL, len(code) + 2, 0, _NETLINK)]
    family += [(_JUMP_EQUAL, 2, 0, socket.AF_INET), (_JUMP_EQUAL, 1, 0, socket.AF_INET6), _PASS]
    return family + code


def _rule(call: int, tests: list[Instruction]) -> list[Instruction]:
    """Return code that decides about one call by `tests`, which end with a return."""
    return [(_JUMP_EQUAL, 0, len(tests), call), *tests]


def _match(action: Instruction, *wanted: tuple[int, int]) -> list[Instruction]:
    """Return code that ends with `action` where all arguments have their (offset, value), else goes on."""
    code: list[Instruction] = [action]
    for offset, value in reversed(wanted):
        code = [(_LOAD, 0, 0, offset), (_JUMP_EQUAL, 0, len(code), value), *code]
    return code


def _architecture(machine: str | None) -> _Architecture:
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the seccomp filter supports x86_64 and aarch64, not {machine}")
    return _ARCHITECTURES[machine]


def _assemble(arch: _Architecture, code: list[Instruction]) -> bytes:
    """Return a program that allows all calls of this architecture but clone3 and those that `code` denies."""
    head: list[Instruction] = [(_LOAD, 0, 0, _AUDIT), (_JUMP_EQUAL, 1, 0, arch.audit), _MISSING]
    head += [(_LOAD, 0, 0, _NUMBER), (_JUMP_EQUAL, 0, 1, _CLONE3), _MISSING]
    if arch is _ARCHITECTURES["x86_64"]:
        head += [(_JUMP_ABOVE, 0, 1, _X32_BIT), _MISSING]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*head, *code, _PASS])


def _only_families(call: int) -> list[Instruction]:
    """Allow `call` only for the families in _SOCKETS and the routing protocol of netlink."""
    count = len(_SOCKETS)
    tests = [(_JUMP_EQUAL, count + 3 - index, 0, int(family)) for index, family in enumerate(_SOCKETS)]
    return [
        (_JUMP_EQUAL, 0, count + 6, call),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *tests,
        (_JUMP_EQUAL, 0, 2, _NETLINK),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, _NETLINK_ROUTE),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        _PASS,
    ]
