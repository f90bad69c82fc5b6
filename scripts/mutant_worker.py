"""Runs tests on a copy of the tree; `scripts/mutants.py` starts it there.

One job a line on stdin as JSON, one result a line on stdout. Each job runs in a fork of this process, which
has imported the libraries but nothing of Hone: so a mutated file is imported again, and torch is not.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

LIBRARIES = (
    *("aiohttp", "httpx", "hypothesis.strategies", "jinja2", "libcst.matchers", "numpy", "msgspec"),
    *("prometheus_client", "psutil", "pyarrow.parquet", "pydantic", "rich.console", "safetensors"),
    *("starlette.applications", "tokenizers", "torch", "transformers", "typer", "uvicorn", "yaml"),
)
ROOMS = ("train", "rollout", "grading", "environment", "tasks", "evaluate")


def main() -> None:
    sys.path[0] = str(Path.cwd())
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a fork and return its exit code (None: it ran past `timeout_s`) and seconds."""
    start = time.monotonic()
    if (child := os.fork()) == 0:
        _run_in_child(job)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], job["timeout_s"])
    os.close(descriptor)
    if not ended:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status) if ended else None
    return {"code": code, "seconds": round(time.monotonic() - start, 2)}


def _run_in_child(job: dict[str, Any]) -> None:
    code = 70
    try:
        os.setsid()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        if job["kind"] == "coverage":
            code = _collect_coverage(Path(job["output"]), job["tests"])
        else:
            code = _run_tests(job["tests"])
        sys.stdout.flush()
    finally:
        os._exit(int(code))


def _run_tests(tests: list[str]) -> int:
    """Run tests, given by id or by file, in this order until the first failure."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    order = {test: i for i, test in enumerate(tests)}
    return pytest.main(["-q", "-x", "-n", "0", *files], plugins=[_Selection(order)])


class _Selection:
    """Keeps the chosen tests, in their order."""

    def __init__(self, order: dict[str, int]) -> None:
        self.order = order

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            item.place = self.order.get(item.nodeid, self.order.get(item.nodeid.partition("::")[0]))
        items[:] = sorted((item for item in items if item.place is not None), key=lambda item: item.place)


def _collect_coverage(output: Path, tests: list[str]) -> int:
    """Run fast tests and write which of them reach which lines, and the seconds of each."""
    measured = coverage.Coverage(
        data_file=None, source=[str(Path("hone", room).absolute()) for room in ROOMS], config_file=False
    )
    contexts = _Contexts(measured)
    measured.start()
    code = pytest.main(["-q", "--fast", "-n", "0", *tests], plugins=[contexts])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(file).relative_to(Path.cwd())): dict(data.contexts_by_lineno(file))
        for file in data.measured_files()
    }
    failed = sorted(contexts.failed)
    output.write_text(json.dumps({"seconds": contexts.seconds, "failed": failed, "lines": lines}))
    return 0 if code in (0, 1) else code


class _Contexts:
    """Names the running test as the context of what is measured.

    The context of a fixture that several tests share is their file.
    """

    def __init__(self, measured: Any) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.current = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.current = nodeid
        self.measured.switch_context(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.current = ""
        self.measured.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        self.measured.switch_context(self.current.partition("::")[0])
        try:
            return (yield)
        finally:
            self.measured.switch_context(self.current)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


if __name__ == "__main__":
    main()
