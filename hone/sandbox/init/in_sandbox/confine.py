"""Keep processes in the tree of their command, so that they are killed with it.

Trees are found by parent ids, and each command is the subreaper of its orphans. Two calls would move a
process out: clone with CLONE_PARENT, and prctl(PR_SET_CHILD_SUBREAPER, 0). A seccomp filter, inherited by
all, denies them. It needs no privileges and adds to a filter already in force. Constants: linux/seccomp.h,
linux/audit.h, the kernel's syscall tables.
"""

import _struct as struct
import errno
import posix as os

from .command import prctl

_CLONE_PARENT = 0x8000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER_MODE = 22, 38, 2
_PR_SET_CHILD_SUBREAPER = 36
_CALLS = {"x86_64": (0xC000003E, 56, 157), "aarch64": (0xC00000B7, 220, 167)}  # AUDIT_ARCH, clone, prctl
_CLONE3 = 435  # passes its flags by pointer; without it the C library falls back to clone
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _AUDIT, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in seccomp_data (little endian)
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_HEADER_BYTES = bytes.__basicsize__ - 1  # of a bytes object, before its content


def program(machine: str) -> bytes:
    """Return the BPF program for one architecture."""
    audit, clone, prctl_number = _CALLS[machine]
    refuse, missing = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    allow = (_RETURN, 0, 0, _ALLOW)
    code = [
        (_LOAD, 0, 0, _AUDIT),
        (_EQUAL, 1, 0, audit),
        missing,
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 1, _CLONE3),
        missing,
        (_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _FIRST),
        (_ANY_BIT, 0, 1, _CLONE_PARENT),
        refuse,
        allow,
        (_EQUAL, 0, 5, prctl_number),
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 0, 3, _PR_SET_CHILD_SUBREAPER),
        (_LOAD, 0, 0, _SECOND),
        (_EQUAL, 0, 1, 0),
        refuse,
        allow,
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def keep_trees_together() -> None:
    """Install the filter for this process and its descendants. Raises OSError."""
    code = program(os.uname().machine)
    # struct sock_fprog; id() is an address in the bundle's CPython
    described = struct.pack("@HxxxxxxP", len(code) // 8, id(code) + _HEADER_BYTES)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _FILTER_MODE, described)
