"""The time limit of searches: a regular expression may never finish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hone.agents.debugger.client import MOUNTS

_SEARCH = """
import signal, sys, types
sys.path.insert(0, sys.argv[1])
sys.modules["hone_processes"] = types.ModuleType("hone_processes")
import hone_debug_server as server
server.SEARCH_TIMEOUT_S = 0.2
signal.signal(signal.SIGALRM, server.search_timed_out)
for pattern in ("(a+)+$", "b$"):
    print(server.Server(sys.argv[2]).answer(
        {"op": "grep", "arguments": {"pattern": pattern, "path": "", "limit": 9}}))
"""


def test_endless_search_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 60 + "b")
    command = [sys.executable, "-c", _SEARCH, str(MOUNTS[0].source), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    stopped, found = done.stdout.splitlines()
    assert "The search took longer than 0.2 s" in stopped
    assert "'limited': False" in found
