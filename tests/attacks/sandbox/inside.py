"""Prefix of every attack program. It runs in any image, so it uses the standard library only.

An attempt prints one line, `name TAB through|refused TAB detail`, which `attack_target.Outcomes` parses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
arguments = sys.argv[1:]
# Calls before 5.2 differ by architecture; the younger ones share their numbers.
OLD_CALLS = {
    "x86_64": {
        "ptrace": 101, "syslog": 103, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163,
        "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "sethostname": 170, "setdomainname": 171,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "unshare": 272, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313, "bpf": 321,
        "userfaultfd": 323, "clone": 56, "ioprio_set": 251, "io_setup": 206, "seccomp": 317,
    },
    "aarch64": {
        "ptrace": 117, "syslog": 116, "pivot_root": 41, "adjtimex": 171, "chroot": 51, "acct": 89,
        "mount": 40, "umount2": 39, "swapon": 224, "reboot": 142, "sethostname": 161, "setdomainname": 162,
        "init_module": 105, "delete_module": 106, "quotactl": 60,
        "clock_settime": 112, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219,
        "unshare": 97, "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "clone": 220, "ioprio_set": 30, "io_setup": 0, "seccomp": 277,
    },
}  # fmt: skip
CALLS = OLD_CALLS[os.uname().machine] | {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "clone3": 435,
    "pidfd_getfd": 438, "mount_setattr": 442,
}  # fmt: skip


def call(name: str, *values: object) -> int:
    """A raw system call. Raises OSError."""
    result = libc.syscall(
        CALLS.get(name, -1), *(ctypes.c_long(v) if isinstance(v, int) else v for v in values)
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def attempt(name: str, act: Callable[..., object], *values: object) -> None:
    """Try; what comes back is a catch unless it is None, False or an empty string."""
    try:
        catch = act(*values)
    except OSError as error:
        tell(name, None, errno.errorcode.get(error.errno or 0, type(error).__name__))
    else:
        tell(name, None if catch in (b"", "", []) else catch)


def past(name: str, act: Callable[..., object], *values: object) -> None:
    """Try a call with senseless arguments: it gets through when its caller's rights are not what stops it."""
    try:
        act(*values)
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS)
        tell(name, None if refused else True, errno.errorcode[error.errno or 0])
    else:
        tell(name, True)


def in_child(act: Callable[..., object], *values: object) -> bool:
    """Try in a process of its own; True when it did not raise. Raises the OSError that it met."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            act(*values)
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "in a child")
    return True


def read(path: str, size: int = 4096) -> bytes | None:
    """The first bytes of a file, None when there are none."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, size) or None
    finally:
        os.close(fd)


def tell(name: str, catch: object, detail: str = "") -> None:
    """Print the outcome of one attempt."""
    result = "refused" if catch is None or catch is False else "through"
    # one write, even where PYTHONUNBUFFERED is set: processes that report at once do not mix their lines
    sys.stdout.write(f"{name}\t{result}\t{detail or repr(catch)[:100]}\n")
    sys.stdout.flush()
