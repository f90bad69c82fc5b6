"""Checks and errors on machines where a program or a kernel feature is missing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.sandbox import ProviderUnavailable, SandboxSpec, make_provider
from hone.sandbox.health import limit_checks
from hone.sandbox.namespaces import doctor
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.ordinary_user import run_as_ordinary_user

_EXAMINE = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from hone.sandbox import make_provider
from hone.sandbox.namespaces import doctor
from hone.sandbox.settings import SandboxSettings
base = Path(sys.argv[1]) if sys.argv[1:] else Path.home()
health = asyncio.run(make_provider(SandboxSettings(state_dir=base / "s", cache_dir=base / "c")).health())
print(json.dumps([dataclasses.asdict(check) for check in health.checks] + [health.ok]))
"""


def _settings(tmp_path: Path) -> SandboxSettings:
    return SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")


def test_doctor_names_the_install_command_of_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    health = asyncio.run(make_provider(_settings(tmp_path)).health())
    assert not health.ok
    assert health.checks[0].fix == "apt-get install bubblewrap"


def test_without_bubblewrap_nothing_runs_unisolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    async def run() -> None:
        async with make_provider(_settings(tmp_path)) as provider:
            await provider.start(SandboxSpec())

    with pytest.raises(ProviderUnavailable, match="apt-get install bubblewrap") as caught:
        asyncio.run(run())
    assert not caught.value.retryable


def test_state_directory_writable_by_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)

    async def run() -> None:
        async with make_provider(_settings(tmp_path)):
            pass

    with pytest.raises(ProviderUnavailable, match="only this user can write"):
        asyncio.run(run())


@pytest.mark.full
@pytest.mark.sandbox
def test_doctor_names_the_setting_that_blocks_user_namespaces(tmp_path: Path) -> None:
    block = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "bash", "-c", block, "bash"]
    examine = [sys.executable, "-c", _EXAMINE, str(tmp_path)]
    done = subprocess.run([*command, *examine], capture_output=True, text=True)
    *checks, ok = json.loads(done.stdout)
    assert not ok
    broken = next(check for check in checks if not check["ok"])
    assert broken["fix"] == "sysctl -w user.max_user_namespaces=15000"


@pytest.mark.sandbox
def test_doctor_passes_on_this_machine(tmp_path: Path) -> None:
    health = asyncio.run(make_provider(_settings(tmp_path)).health())
    assert health.ok
    checks = {check.name: check for check in health.checks}
    assert "pytest" in checks["tools"].detail
    assert checks["limit: machine stores"].detail == "seccomp"


def test_doctor_names_kernels_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.uname_result(("Linux", "here", "6.6.0-1-generic", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: old)
    found = {check.name: check for check in limit_checks(doctor.enforced({}))}
    assert not found["limit: socket options"].ok
    assert found["limit: socket options"].detail == "none before Linux 6.8"


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user from root")
def test_doctor_reports_weak_limits_without_cgroups() -> None:
    done = run_as_ordinary_user([sys.executable, "-c", _EXAMINE])
    assert done.returncode == 0, done.stderr
    *checks, ok = json.loads(done.stdout)
    assert ok
    held = {check["name"]: check for check in checks}
    assert held["limit: memory"]["detail"] == "rlimit and watchdog"
    assert held["limit: cpus"]["detail"] == "whole cores, by affinity"
    assert "Delegate=yes" in held["limit: cpus"]["fix"]
    assert held["limit: sockets"]["detail"] == "count, except their buffers"
    assert held["limit: shared files"]["detail"] == "overlays, except device nodes without root"
    assert not held["limit: sockets"]["ok"]
    assert not held["limit: shared files"]["ok"]
    assert held["limit: terminals"]["ok"]


_CORES = """
import asyncio, sys
from pathlib import Path
from hone.sandbox import Limits, SandboxSpec, make_provider
from hone.sandbox.namespaces import doctor
from hone.sandbox.settings import SandboxSettings

async def main():
    async with make_provider(SandboxSettings(state_dir=Path.home() / "state")) as provider:
        async with await provider.start(SandboxSpec(limits=Limits(cpus=1))) as sandbox:
            ask = "import os; print(len(os.sched_getaffinity(0))); os.sched_setaffinity(0, range(64))"
            print(await sandbox.exec(["python3", "-c", ask]))

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user from root")
def test_cpu_affinity_holds_without_cgroups() -> None:
    done = run_as_ordinary_user([sys.executable, "-c", _CORES])
    assert "stdout=b'1\\n'" in done.stdout, done.stderr
    assert "Operation not permitted" in done.stdout


def test_old_kernel_is_refused_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.uname_result(("Linux", "here", "5.15.0-1-generic", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: old)
    with pytest.raises(ProviderUnavailable, match=r"Linux 6\.6 or newer, this is 5\.15\.0"):
        doctor.require_image_kernel()
