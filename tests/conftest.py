"""Services for every test that asks for one, the tiers, and the seconds that each folder took."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import defaultdict
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.services.fixtures import docker, podman, registry, registry_image

__all__ = ["docker", "podman", "registry", "registry_image"]

# "fast" and "test" draw the same examples in every run, so that only a change turns a test red;
# `make test-full` draws new ones. No deadline: on a busy machine any example may take longer than 200 ms.
settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("test", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("full", max_examples=200, deadline=None)

# One thread of PyTorch for each worker, set before any test imports it: more threads than cores wait for each
# other in loops, and a step then takes ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Collecting thousands of tests allocates much and frees little: look for garbage a hundred times less often.
gc.set_threshold(70_000, 10, 10)

# Threads that take turns often meet more of the races between them; see scripts/repeat_under_load.py.
if interval := os.environ.get("HONE_SWITCH_INTERVAL"):
    sys.setswitchinterval(float(interval))

HERE = Path(__file__).parent
# openai-harmony downloads the vocabulary of gpt-oss whenever a tokenizer is tried with it, unless this names
# the source: the result of a test must not depend on the network.
os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(HERE / "no_vocabulary_here")

# Servers, services and state machines: not in `make fast`.
LONG = (
    "attacks",
    "chaos",
    "e2e",
    "policy/engines",
    "sandbox/docker",
    "sandbox/images",
    "sandbox/node",
    "sandbox/pool",
    "services",
)
# In these folders, but on virtual time or without any server.
QUICK = (
    "sandbox/node/test_errors_and_tokens.py",
    "sandbox/pool/test_chance.py",
    "sandbox/pool/test_leases.py",
    "sandbox/pool/test_placement.py",
    "sandbox/pool/test_pool.py",
)
# Each wait there has a bound of its own; together, or as attacks that are all graded first, they take longer.
PATIENT = ("attacks/grading", "chaos")
# Tests with any of these are not in `make fast`. `make test` starts them in this order, the longest first,
# so that no worker is left alone with one at the end.
NOT_FAST = ("vllm", "e2e", "sglang", "full", "sandbox", "model", "slow")
MODULE_MARKS = re.compile(
    rf"^pytestmark = .*?pytest\.mark\.({'|'.join(NOT_FAST)})\b", re.MULTILINE | re.DOTALL
)
PYTESTMARK = re.compile(r"^pytestmark = (?:\[.*?\]|[^\n]*)", re.MULTILINE | re.DOTALL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that need no sandbox, model or server")


def pytest_configure(config: pytest.Config) -> None:
    fast = config.getoption("--fast")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast" if fast else "test"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, do not import modules that hold no fast test: most of the time would go there."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    marks = PYTESTMARK.search(collection_path.read_text())
    return True if _is_long(collection_path) or (marks and MODULE_MARKS.search(marks[0])) else None


@pytest.hookimpl(wrapper=True)  # xdist reads the groups in a hook of its own, which would run first
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    for item in items:
        if _is_long(item.path):
            item.add_marker(pytest.mark.slow)
        if _is_patient(item.path):
            item.add_marker(pytest.mark.timeout(900))
        if item.get_closest_marker("vllm"):  # one server at a time: each takes both cores
            item.add_marker(pytest.mark.xdist_group("vllm"))
        elif _uses_an_engine(item):  # one worker starts the container engines for all
            item.add_marker(pytest.mark.xdist_group("engines"))
        elif not item.get_closest_marker("xdist_group"):  # fixtures of a module are made once
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(HERE.parent).with_suffix(""))))
    if config.getoption("--fast"):
        fast = [item for item in items if _rank(item) == len(NOT_FAST)]
        config.hook.pytest_deselected(items=[item for item in items if _rank(item) < len(NOT_FAST)])
        items[:] = fast
    else:
        items.sort(key=lambda item: 2 if _is_patient(item.path) or _uses_an_engine(item) else _rank(item))
    return (yield)


def pytest_collection_finish() -> None:
    """Exempt the imported modules from garbage collection: it would walk them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    if node.config.getoption("dist") == "loadgroup" and not all("@" in test for test in ids):
        pytest.exit(
            "pytest-xdist did not group the tests, so every worker would make the fixtures of every module: "
            "install the versions of constraints.txt",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@cache
def _is_long(path: Path) -> bool:
    if path.is_relative_to(HERE) and path.relative_to(HERE).as_posix() in QUICK:
        return False
    return any(path.is_relative_to(HERE / folder) for folder in LONG)


@cache
def _is_patient(path: Path) -> bool:
    return any(path.is_relative_to(HERE / folder) for folder in PATIENT)


def _uses_an_engine(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    marked = any(mark.args == ("engines",) for mark in item.iter_markers("xdist_group"))
    return (
        marked or bool({"docker", "podman"} & fixtures) or item.path.is_relative_to(HERE / "sandbox/docker")
    )


def _rank(item: pytest.Item) -> int:
    """Return the place of the first marker of NOT_FAST that the test has; their number if it has none."""
    names = {marker.name for marker in item.iter_markers()}
    return next((i for i, name in enumerate(NOT_FAST) if name in names), len(NOT_FAST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds of each folder, all workers together, so that the next slow test is seen."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                parts = report.nodeid.split("::")[0].split("/")
                folder = "/".join(parts[:3] if len(parts) > 3 else parts[:2])
                seconds[folder] += report.duration
                tests[folder] += report.when == "call"
    terminalreporter.section("seconds of each folder")
    for folder in sorted(seconds, key=seconds.__getitem__, reverse=True):
        if seconds[folder] >= 1:
            terminalreporter.line(f"{seconds[folder]:7.0f} s {tests[folder]:5} tests  {folder}")
