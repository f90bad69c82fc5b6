"""Attacks that end, hang, starve or outlive the test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.grading.attack import Attack, at_call, at_import, check_attacks

HASTY = 1.5  # seconds for tests that never end

ATTACKS: dict[str, Attack] = {
    "exits at import": at_import("import os\nos._exit(0)"),
    "exits with pytest's status": at_import("import os\nos._exit(1)"),
    "exits within a test": at_call("import os; os._exit(0)"),
    "exits in a thread": at_import(
        "import os, threading\nthreading.Timer(0.05, os._exit, (0,)).start()\nimport time\ntime.sleep(0.2)"
    ),
    "exits in atexit": at_import("import atexit, os\natexit.register(os._exit, 0)\nraise KeyboardInterrupt"),
    "exits in atexit, after the tests": at_import("import atexit, os\natexit.register(os._exit, 0)"),
    "exits when it is deleted": at_import(
        "import os\nclass Last:\n    def __del__(self): os._exit(0)\nlast = Last()"
    ),
    "raises SystemExit": at_import("import sys\nsys.exit(0)"),
    "raises SystemExit within a test": at_call("raise SystemExit(0)"),
    "raises KeyboardInterrupt within a test": at_call("raise KeyboardInterrupt"),
    "replaces sys.exit": at_import("import sys\nsys.exit = lambda code=0: None"),
    "replaces os._exit": at_import("import os\nreal = os._exit\nos._exit = lambda code: real(0)"),
    "execs another program": at_import("import os\nos.execvp('true', ['true'])"),
    "ends the session": at_import("import pytest\npytest.exit('fine', 0)"),
    "skips the module": at_import("import pytest\npytest.skip('later', allow_module_level=True)"),
    "skips the test": at_call("import pytest; pytest.skip('later')"),
    "raises SkipTest": at_call("import unittest; raise unittest.SkipTest('later')"),
    "expects to fail": at_call("import pytest; pytest.xfail('known')"),
    "forks the session": at_import("import os\nos.fork()"),
    "continues in a child": at_import("import os\nif os.fork():\n    os._exit(0)"),
    "kills everything": at_import("import os\nos.kill(-1, 9)"),
    "kills the runner": at_import("import os\nos.kill(os.getppid(), 9)"),
    "interrupts the runner": at_import("import os, signal\nos.kill(os.getppid(), signal.SIGINT)"),
    "kills its group": at_import("import os\nos.killpg(0, 9)"),
    "handles every signal": at_import(
        "import signal\nfor number in range(1, 30):\n    try:\n"
        "        signal.signal(number, lambda *a: None)\n    except (OSError, ValueError):\n        pass"
    ),
    "alarms within a test": at_call(
        "import os, signal; signal.signal(signal.SIGALRM, lambda *a: os._exit(0)); signal.setitimer(0, 0.01);"
        " [i for i in range(10**8)]"
    ),
    "eats the memory": at_import("hog = []\nwhile True:\n    hog.append(bytearray(b'x') * (64 << 20))"),
    "eats the descriptors": at_import("import os\nwhile True:\n    os.dup(1)"),
    "eats the disk": at_import(
        "with open('/tmp/big', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))"
    ),
    "prints without end": at_import("while True:\n    print('18 passed' * 1000)", timeout_s=HASTY),
    "overflows the stack": at_import(
        "import sys\nsys.setrecursionlimit(10**9)\ndef deeper(x):\n    return repr(deeper([x]))\ndeeper(1)"
    ),
    "overflows the stack in C": at_import("import ctypes\nctypes.string_at(0)"),
    "is a fork bomb": at_import(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        timeout_s=HASTY,
    ),
    "starts threads without end": at_import(
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(99,)).start()",
        timeout_s=HASTY,
    ),
    "loops at import": at_import("while True: pass", timeout_s=HASTY),
    "loops for ever": at_call("\n    while True: pass", timeout_s=HASTY),
    "stops the runner": at_call("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", timeout_s=HASTY),
    "stops itself": at_import("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", timeout_s=HASTY),
    "leaves a process behind": at_import(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(99)"
    ),
    "leaves a thread behind": at_import(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", timeout_s=HASTY
    ),
    "rewrites results in the background": at_import(
        """import os, time
passed, done = os.pipe()  # the tests wait for the first pass, so that the control does not depend on speed
if os.fork() == 0:
    os.setsid()
    while True:
        for place, _, files in os.walk('.'):
            for file in files:
                if file.endswith(('.log', '.xml', '.json')) or file.startswith('test_'):
                    try:
                        with open(os.path.join(place, file), 'w') as out:
                            out.write('def test_add(): pass  # 18 passed')
                    except OSError:
                        pass
        if done is not None:
            os.close(done)
            done = None
        time.sleep(0.01)
os.close(done)
os.read(passed, 1)"""
    ),
}
CAUGHT = {"forks the session"}


@pytest.mark.full
def test_no_attack_by_the_end_of_the_run_is_resolved(tmp_path: Path) -> None:
    check_attacks(ATTACKS, tmp_path, caught=CAUGHT)
