"""`pytest --pyargs hone.sandbox.conformance`, as authors of a provider run it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox

PYTEST = Path(sys.executable).with_name("pytest")
PAGE = Path(__file__).parents[2] / "docs" / "04-sandbox.md"
SUITE = ["--pyargs", "hone.sandbox.conformance"]


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PYTEST, "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


@pytest.mark.full
def test_documented_provider_passes_with_the_documented_command(tmp_path: Path) -> None:
    section = PAGE.read_text().split("## Write your own provider")[1]
    example, command = re.findall(r"```(?:python|bash)\n(.*?)```", section, re.DOTALL)
    (tmp_path / "few.py").write_text(example)
    some = "input or cancelled or clos or tree or many_sandboxes"
    done = pytest_in(tmp_path, *shlex.split(command)[1:], "-k", some)
    assert done.returncode == 0, done.stdout[-8000:]


def test_failed_check_shows_both_values(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from dataclasses import replace\n"
        "from hone.sandbox import make_provider\n"
        "from hone.sandbox.settings import SandboxSettings\n"
        "class Broken:\n"
        "    def __init__(self): self.inner = make_provider(SandboxSettings())\n"
        "    async def start(self, spec): return await self.inner.start(replace(spec, env={}))\n"
        "    async def __aenter__(self): await self.inner.__aenter__(); return self\n"
        "    async def __aexit__(self, *exc): await self.inner.__aexit__(*exc)\n"
    )
    done = pytest_in(tmp_path, *SUITE, "--provider", "broken:Broken", "-k", "environment_holds")
    assert done.returncode == 1, done.stdout[-8000:]
    assert "'SPEC': '1'" in done.stdout


@pytest.mark.full
def test_settings_reach_the_provider(tmp_path: Path) -> None:
    refused = pytest_in(tmp_path, *SUITE, "--sandbox-set", "memory_mib=none", "-k", "a_shell_command")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "memory_mib" in refused.stdout
    taken = pytest_in(tmp_path, *SUITE, "--sandbox-set", "pids=64", "-k", "a_shell_command")
    assert taken.returncode == 0, taken.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--provider", "nothing"], "'namespaces', 'docker' or 'pool'"),
        (["--sandbox-set", "pids"], "KEY=VALUE"),
        pytest.param(
            ["--provider", "no_such_module:make"], "No module named 'no_such_module'", marks=pytest.mark.full
        ),
        pytest.param(["--provider", "json:make"], "no attribute 'make'", marks=pytest.mark.full),
        pytest.param(
            ["--provider", "json:dumps", "--sandbox-set", "pids=3"],
            "settings are for Hone's own providers",
            marks=pytest.mark.full,
        ),
    ],
)
def test_wrong_option_is_reported_once(tmp_path: Path, arguments: list[str], reason: str) -> None:
    done = pytest_in(tmp_path, *SUITE, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stdout.count(reason) == 1


def test_other_projects_keep_their_own_provider_option(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--provider', default='theirs')\n"
    )
    (tmp_path / "test_x.py").write_text(
        "def test_x(pytestconfig):\n    assert pytestconfig.option.provider == 'y'\n"
    )
    done = pytest_in(tmp_path, "--provider", "y")
    assert done.returncode == 0, done.stdout
