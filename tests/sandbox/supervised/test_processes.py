"""How process 1 of a sandbox finds what it has to kill, in a process namespace of the test's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.sandbox

PROGRAM = """
import os, signal, sys, time
from hone.sandbox.supervised.inside import processes

assert os.getpid() == 1  # it signals everything it can see
processes._PASSES = int(sys.argv[1])

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]

def until(pid, states):
    deadline = time.monotonic() + 60
    while state(pid) not in states:
        assert time.monotonic() < deadline, (pid, state(pid))
        time.sleep(0.005)

runs, halts = child(signal.pause), child(lambda: os.kill(os.getpid(), signal.SIGSTOP))
target = child(lambda: (child(signal.pause), child(signal.pause), signal.pause()))
until(runs, "S"), until(halts, "T")
while len(processes.Snapshot().below({target})) < 3:
    time.sleep(0.005)
killed = processes.kill_all(lambda seen: seen.below({target}))
assert len(killed) == 3 and target in killed, killed
assert os.waitstatus_to_exitcode(os.waitpid(target, 0)[1]) == -signal.SIGKILL
until(runs, "S"), until(halts, "T")
os.kill(halts, signal.SIGCONT)
assert os.waitpid(halts, 0)[1] == 0  # it was as it had been
assert processes.kill_everything() >= {runs}
while os.waitpid(-1, 0)[0] != runs:
    continue
print("well")
"""


@pytest.mark.parametrize("passes", [30, 0], ids=["one after the other", "all stopped at once"])
def test_a_tree_is_killed_and_the_others_are_as_they_were(passes: int) -> None:
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*own, sys.executable, "-c", PROGRAM, str(passes)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "well\n", done.stderr
