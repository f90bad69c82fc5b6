"""The namespaces provider passes the suite, as root and as an ordinary user."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import make_provider
from hone.sandbox.conformance import CHECKS, Check
from hone.sandbox.conformance.suite import Run, opened
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.ordinary_user import run_as_ordinary_user

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    base = tmp_path_factory.mktemp("hone")
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    with opened(make_provider(settings)) as run:
        yield run
    assert list(Path(base / "state").iterdir()) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_namespaces(check: Check, run: Run) -> None:
    run(check)


@pytest.mark.timeout(900)  # all of the above at once
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above already ran as an ordinary user")
def test_the_suite_passes_as_an_ordinary_user() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = run_as_ordinary_user(command)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert f"{len(CHECKS)} passed" in done.stdout
