"""Process trees are found and killed, in a PID namespace of the test's own; other processes are untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.utils import processes

PRELUDE = """
import os, signal, sys, time
from hone.utils import processes

assert os.getpid() == 1  # it may signal everything it can see

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

def wait_for(condition):
    while not condition():
        time.sleep(0.005)
"""
TREE = """
processes._PASSES = int(sys.argv[1])
runs, halts = child(signal.pause), child(lambda: os.kill(os.getpid(), signal.SIGSTOP))
target = child(lambda: (child(signal.pause), child(signal.pause), signal.pause()))
wait_for(lambda: state(runs) == "S" and state(halts) == "T")
wait_for(lambda: len(processes.Snapshot().tree({target})) == 3)
killed = processes.kill_selected(lambda seen: seen.tree({target}), may_stop_all=True)
assert len(killed) == 3 and target in killed, killed
assert os.waitstatus_to_exitcode(os.waitpid(target, 0)[1]) == -signal.SIGKILL
wait_for(lambda: state(runs) == "S" and state(halts) == "T")
os.kill(halts, signal.SIGCONT)
assert os.waitpid(halts, 0)[1] == 0  # it was as it had been
assert processes.kill_all_but_init() >= {runs}
assert processes.reap_children(60)
print("passed")
"""
DESCENDANTS = """
import ctypes
SUBREAPER = 36
def supervise():
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    child(lambda: (child(lambda: (os.setsid(), signal.pause())), os._exit(0)))  # an orphan in its own session
    child(lambda: (child(signal.pause), signal.pause()))
    def live():
        snapshot = processes.Snapshot()
        return snapshot.tree({os.getpid()}) - snapshot.zombies
    wait_for(lambda: len(live()) == 4 and os.getpid() in live())
    processes.kill_descendants()
    assert processes.reap_children(60)
    os._exit(7)
other = child(signal.pause)
assert os.waitstatus_to_exitcode(os.waitpid(child(supervise), 0)[1]) == 7
wait_for(lambda: state(other) == "S")
print("passed")
"""
MATCHING = """
one, other = child(signal.pause), child(signal.pause)
assert processes.start_time(one) and processes.kill_matching(lambda pid: pid == one, 60) == 1
assert processes.start_time(one) is None and processes.exists(one)  # a zombie
assert os.waitpid(one, 0)[0] == one and not processes.exists(one)
wait_for(lambda: state(other) == "S")
assert processes.resident_kib(other) > 0 == processes.resident_kib(one)
processes.send_signal({one, other}, signal.SIGKILL)
processes.kill_group(one)
assert processes.reap_children(60)
print("passed")
"""


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("program", "argument"),
    [(TREE, "30"), (TREE, "0"), (DESCENDANTS, ""), (MATCHING, "")],
    ids=["tree", "tree, all stopped", "descendants", "matching"],
)
def test_only_selected_processes_are_killed(program: str, argument: str) -> None:
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    own = ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*own, sys.executable, "-c", PRELUDE + program, argument], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "passed\n", done.stderr


def test_module_imports_builtin_modules_only() -> None:
    """It is copied into sandboxes, where the interpreter may have no standard library."""
    program = "import sys; sys.path[:] = [sys.argv[1]]; import processes; print(processes.Snapshot().steady)"
    command = [sys.executable, "-I", "-S", "-c", program, str(Path(processes.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
