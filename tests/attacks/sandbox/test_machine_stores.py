"""Stores that all sandboxes of a machine share: none runs dry from inside one of them."""

from __future__ import annotations

from hone.sandbox import Sandbox, SandboxSpec
from hone.sandbox.namespaces.rootfs import TERMINALS_MAX
from tests.attacks.sandbox.attack_target import AttackTarget, attack, program

# The control's process 1 is its own.
_OWN_PROCESS_1 = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", '"$@"; true', "sh"),
)
_TERMINALS = """
held = []
try:
    while len(held) < 200: held.append(os.openpty())
except OSError: pass
for ours, theirs in held:
    os.write(ours, b"typed\\n")
    assert os.read(theirs, 100) == b"typed\\n"
print(len(held), flush=True)
"""


def test_terminals_are_limited_per_sandbox(attacked: AttackTarget) -> None:
    """The honest control: all that a sandbox may have work, again and again."""

    async def act(sandbox: Sandbox) -> None:
        holding = f"{_TERMINALS}\nimport signal; signal.pause()"
        await sandbox.write("/tmp/hold.py", program(holding).encode())
        hold = "python3 /tmp/hold.py > /tmp/out & until test -s /tmp/out; do sleep 0.01; done; cat /tmp/out"
        assert (await sandbox.exec(hold)).text == f"{TERMINALS_MAX}\n"
        async with await attacked.provider.start(attacked.with_image(SandboxSpec())) as neighbour:
            for _ in range(2):
                result = await neighbour.exec(["python3", "-c", program(_TERMINALS)])
                assert result.text == f"{TERMINALS_MAX}\n", result

    attacked.run(act)


def test_stores_of_the_machine_are_out_of_reach(attacked: AttackTarget) -> None:
    """Contexts of asynchronous I/O, memory of compiled filters, IPv6 flow labels."""
    attacked.assert_denied(
        """
import socket, struct
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
filter = struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
def filtered(option):
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind(("127.0.0.1", 0))
        own.setsockopt(socket.SOL_SOCKET, option, filter)
    return True
def labelled():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as own:
        to = socket.inet_pton(socket.AF_INET6, "::1")
        own.setsockopt(41, 32, to + struct.pack("IBBHHHI", 0, 0, 1, 1, 6, 6, 0))
    return True
def confined(number, *values):
    def act():
        libc.prctl(38, 1, 0, 0, 0)
        call(number, *values)
    return in_child(act)
CALLS["prctl"] = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
attempt("contexts", lambda: call("io_setup", 1, ctypes.byref(ctypes.c_ulong(0))) == 0)
attempt("socket filter", filtered, 26)
attempt("filter of a group", filtered, 51)
attempt("flow label", labelled)
attempt("seccomp filter", confined, "seccomp", 1, 0, ctypes.c_char_p(filter))
attempt("seccomp filter by prctl", confined, "prctl", 22, 2, ctypes.c_char_p(filter), 0, 0)
"""
    )


def test_process_1_cannot_be_limited_or_slowed(attacked: AttackTarget) -> None:
    """An attacker who limits process 1 decides whether later commands can run."""
    code = """
import resource
for name in ("NOFILE", "AS", "CPU", "FSIZE", "DATA"):
    kind = getattr(resource, "RLIMIT_" + name)
    attempt(name, lambda: resource.prlimit(1, kind, resource.prlimit(1, kind)) and True)
attempt("affinity", lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(1))}) or True)
attempt("idle", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)) or True)
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19) or True)
attempt("nice user", lambda: os.setpriority(os.PRIO_USER, 0, 19) or True)
attempt("disk", lambda: call("ioprio_set", 1, 1, 3 << 13) == 0)
"""
    attacked.assert_denied(code, wrapped=_OWN_PROCESS_1)


def test_own_limits_and_priorities_can_be_changed(attacked: AttackTarget) -> None:
    """The honest control."""
    code = """
import resource, socket
attempt("limit", lambda: resource.prlimit(0, resource.RLIMIT_NOFILE, (64, 64)) and True)
attempt("limit by pid", lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CPU, (60, 60)) and True)
attempt("affinity", lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}) or True)
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, 19) or True)
attempt("disk", lambda: call("ioprio_set", 1, 0, 3 << 13) == 0)
def reused():
    with socket.socket() as own: own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True
attempt("option", reused)
"""

    async def act(sandbox: Sandbox) -> None:
        assert not (await attack(sandbox, code)).refused

    attacked.run(act)
