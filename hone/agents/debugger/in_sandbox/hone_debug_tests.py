"""Run the visible tests: the server starts `python hone_debug_tests.py [PATH ...] CHANNEL`.

The counts come from pytest's reports over a private channel, not from the output. Code under test can still
forge them; only its own agent sees them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from typing import Any

from hone_debug_wire import pack  # beside this file


class Counts:
    """A pytest plugin that counts each test under the worst outcome of its phases."""

    RANK = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        elif report.failed and report.when != "call":
            outcome = "error"
        if report.when == "call" or outcome != "passed":
            known = self.outcomes.get(report.nodeid, "passed")
            self.outcomes[report.nodeid] = max(known, outcome, key=self.RANK.index)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "error"


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv.pop()))
    paths = sys.argv[1:]
    sys.path[0] = os.getcwd()
    import pytest

    counts = Counts()
    code = int(pytest.main(["--tb=short", "-sq", "-p", "no:cacheprovider", *paths], plugins=[counts]))
    channel.sendall(pack({"counts": Counter(counts.outcomes.values()), "exit_code": code}))
    sys.exit(code)


if __name__ == "__main__":
    main()
