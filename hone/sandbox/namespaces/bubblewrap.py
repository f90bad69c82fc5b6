"""Command line of bubblewrap: namespaces, masked paths and process 1."""

from __future__ import annotations

import functools
import os

from hone.sandbox import seccomp
from hone.sandbox.namespaces.plan import Plan

# Paths in /proc that expose the host; bubblewrap itself makes sys, irq, bus and sysrq-trigger read-only.
_MASKED_FILES = (
    "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "sched_debug",
    "timer_list",
)  # fmt: skip
_MASKED_DIRECTORIES = ("acpi", "asound", "scsi")
_SHOWN_SYS = "/sys/devices/system/cpu"  # read by language runtimes; the rest of /sys is absent


def command(plan: Plan, root: str) -> list[str]:
    """Return the argv of bubblewrap for a root file system mounted at `root`, including /dev.

    The seccomp program is passed in an inheritable memory file.
    """
    program = os.memfd_create("seccomp", 0)
    os.write(program, seccomp.program(fixed_cores=plan.cores > 0))
    os.lseek(program, 0, os.SEEK_SET)
    return [
        plan.bwrap,
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *(
            "--unshare-cgroup-try",
            "--uid",
            str(plan.base.uid),
            "--gid",
            str(plan.base.gid),
            "--hostname",
            "sandbox",
        ),
        *("--dev-bind", root, "/"),  # its mounts have nodev already
        *("--proc", "/proc", *masks()),
        *("--chdir", "/", "--cap-drop", "ALL", "--clearenv", "--seccomp", str(program)),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--", *plan.init),
    ]


@functools.cache
def masks() -> list[str]:
    """Return the options that mask the paths that exist on this machine."""
    words: list[str] = []
    for name in _MASKED_FILES:
        if os.path.exists(f"/proc/{name}"):
            words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in _MASKED_DIRECTORIES:
        if os.path.exists(f"/proc/{name}"):
            words += ["--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
    if os.path.isdir(_SHOWN_SYS):
        words += ["--ro-bind", _SHOWN_SYS, _SHOWN_SYS]
    return words
