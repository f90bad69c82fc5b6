"""The kernel's own doors: its younger interfaces, its settings and its secrets."""

from __future__ import annotations

from hone.sandbox import Sandbox
from tests.attacks.sandbox.attack_target import AttackTarget, attack

SETTINGS = (
    "kernel/core_pattern", "kernel/randomize_va_space", "kernel/unprivileged_bpf_disabled", "kernel/panic",
    "kernel/ns_last_pid", "vm/overcommit_memory", "vm/mmap_min_addr", "fs/file-max", "fs/suid_dumpable",
    "net/ipv4/ip_forward",
)  # fmt: skip
_MISSING = frozenset({"ENOSYS", "ENOENT"})


def test_unneeded_system_calls_are_denied(attacked: AttackTarget) -> None:
    """Most kernel exploits of these years began with one of them."""
    tries = (
        'attempt("bpf map", lambda: call("bpf", 0, struct.pack("IIII56x", 2, 4, 8, 1), 72))',
        'attempt("bpf socket filter", lambda: call("bpf", 5, program, 72))',
        'attempt("perf events", lambda: call("perf_event_open", clock, 0, -1, -1, 0))',
        'attempt("perf events of all", lambda: call("perf_event_open", clock, -1, 0, -1, 0))',
        'attempt("io_uring", lambda: call("io_uring_setup", 4, ctypes.create_string_buffer(256)))',
        'attempt("page faults", lambda: call("userfaultfd", 0))',
        'attempt("page faults of programs", lambda: call("userfaultfd", 1))',
        'attempt("key", lambda: add())',
        'attempt("keys of the session", lambda: call("keyctl", 0, -3, 1))',
        'attempt("a new session", lambda: in_child(call, "keyctl", 1, 0))',
        'attempt("ask for a key", lambda: add() and call("request_key", b"user", b"mine", 0, -2))',
        'attempt("trace a child", lambda: in_child(lambda: call("ptrace", 0, 0, 0, 0)))',
    )
    code = """
import struct
code = ctypes.create_string_buffer(struct.pack("<BBhi", 0xb7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0))
text = ctypes.create_string_buffer(b"GPL")
program = struct.pack("IIQQ48x", 1, 2, ctypes.addressof(code), ctypes.addressof(text))
clock = struct.pack("IIQ112x", 1, 128, 0)
def add():
    return call("add_key", b"user", b"mine", b"x", 1, -2)
"""
    attacked.assert_denied("\n".join((code, *tries)))


def test_kernel_settings_are_read_only(attacked: AttackTarget) -> None:
    """The control writes what it read."""
    attacked.assert_denied(
        """
for path in arguments:
    attempt(path, lambda: os.write(os.open(path, os.O_WRONLY), read(path)))
""",
        *(f"/proc/sys/{name}" for name in SETTINGS),
    )


def test_user_namespace_limit_cannot_be_raised(attacked: AttackTarget) -> None:
    """The control has a user namespace, and with it the rights over its own limits."""
    attacked.assert_denied(
        """
path = "/proc/sys/user/max_user_namespaces"
attempt("write", lambda: os.write(os.open(path, os.O_WRONLY), b"100"))
""",
        wrapped=("unshare", "--user", "--map-root-user"),
    )


def test_machine_controls_cannot_be_opened(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
for path in ("/proc/sysrq-trigger", "/proc/mtrr", "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup",
             "/sys/power/state", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/dev/mem",
             "/sys/kernel/debug/x", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/loop-control"):
    attempt(path, os.open, path, os.O_WRONLY)
""",
        lacking=_MISSING,
    )


def test_kernel_secrets_are_unreadable(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
def look(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return os.read(fd, 64)
    except BlockingIOError: return True
for name in ("kcore", "keys", "key-users", "timer_list", "kmsg", "kpagecount", "slabinfo", "vmallocinfo",
             "sched_debug", "latency_stats", "interrupts"):
    attempt(name, look, "/proc/" + name)
for name in ("kernel/notes", "class/net/lo/address", "block", "firmware", "devices/system/node"):
    attempt("/sys/" + name, lambda: os.stat("/sys/" + name) and True)
""",
        lacking=_MISSING,
    )


def test_kernel_addresses_are_hidden(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
def addresses(path):
    with open(path) as file:
        return any(int(line.split()[0].split("-")[0], 16) for line in file)
attempt("symbols", addresses, "/proc/kallsyms")
attempt("memory", addresses, "/proc/iomem")
""",
        lacking=_MISSING,
    )


def test_sandbox_settings_do_not_change_the_machine(attacked: AttackTarget) -> None:
    """Some settings belong to namespaces and may be written by their owner; they have no effect outside."""
    code = """
for path in ("shmmax", "msgmax", "sem", "pid_max", "shmall"):
    path = "/proc/sys/kernel/" + path
    try:
        old = open(path).read().split()
        with open(path, "w") as file: file.write(" ".join(str(int(number) - 1) for number in old))
        tell(path, True)
    except OSError as error: tell(path, None, str(error.errno))
"""

    async def act(sandbox: Sandbox) -> None:
        assert len((await attack(sandbox, code)).names()) == 5

    attacked.run(act)  # which compares the machine's settings
