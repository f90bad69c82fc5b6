"""Start a service as a process group of its own and end all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hone.policy.engines.managed_server import reserved_port

_START_S = 120.0  # on a slow, busy machine
_DEATH_S = 20.0
_CGROUPS = Path("/sys/fs/cgroup")
_reservations = contextlib.ExitStack()  # of ports, until this process ends


class ServiceFailed(Exception):
    """A service did not start; holds the tail of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service: `process` leads its group, all its files are below `folder`."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path


def require(*programs: str) -> None:
    """End the test where root's privileges or a program is missing: skipped, but failed for root under CI."""
    if os.geteuid() != 0:
        pytest.skip("starting services needs root")
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        sentence = f"{', '.join(missing)} is missing: run scripts/install-services.sh"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(sentence)


@contextlib.contextmanager
def service_folder() -> Iterator[Path]:
    """A private directory with a path short enough for unix sockets; unmounted and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hone-service-")).resolve()
    try:
        yield folder
    finally:
        _unmount(folder)
        shutil.rmtree(folder)


@contextlib.contextmanager
def running(
    command: list[str],
    folder: Path,
    answers: Callable[[], bool],
    *,
    env: Mapping[str, str] | None = None,
    grace_s: float = 30.0,
) -> Iterator[Service]:
    """Run a service in `folder` while the block lasts.

    Args:
        answers: polled until the service answers.
        grace_s: between SIGTERM and SIGKILL.
    Raises:
        ServiceFailed: it ended, or answered nothing in two minutes.
    """
    log = folder / "log"
    environment = {**os.environ, **(env or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command],  # so that it ends with tests that are killed
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_for(process, log, answers)
        yield Service(process=process, folder=folder, log=log)
    finally:
        _stop(process, grace_s)
        _kill_what_it_left(folder)


def control_groups(part: str) -> list[str]:
    """Those of every hierarchy with `part` in their names; others may come and go meanwhile."""
    walk = os.walk(_CGROUPS)  # passes over what ends
    return [f"{folder}/{child}" for folder, children, _ in walk for child in children if part in child]


def remove_control_group(name: str) -> None:
    """Remove a top control group from every hierarchy, where it is empty."""
    for group in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")):
        with contextlib.suppress(OSError):  # it is not there, or holds another engine's containers
            group.rmdir()


def reserve_port() -> int:
    """Return a port of 127.0.0.1 that no other process gets before this one ends.

    Connections are refused until a server with SO_REUSEADDR, as those of asyncio and Go are, listens on it.
    """
    return _reservations.enter_context(reserved_port("127.0.0.1"))


def _wait_for(process: subprocess.Popen[bytes], log: Path, answers: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            ended = process.returncode
            state = "does not answer" if ended is None else f"ended with {ended}"
            raise ServiceFailed(f"{process.args!r} {state}:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):  # the group may have ended with its leader
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_what_it_left(folder: Path) -> None:
    """Containers' monitors (containerd-shim, conmon) leave the group; all of them name the folder."""
    left: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid != os.getpid() and any(f"{folder}/" in word for word in process.cmdline()):
                left |= {process, *process.children(recursive=True)}
    groups = {group for process in left for group in _control_groups(process.pid)}
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_DEATH_S)
    for group in groups:
        with contextlib.suppress(OSError):  # it also holds others, or was removed
            group.rmdir()


def _control_groups(pid: int) -> list[Path]:
    """The directories of a process's control groups, of version 1 and 2."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers:
            roots = [_CGROUPS / controllers.removeprefix("name=")]
        else:
            roots = [_CGROUPS, _CGROUPS / "unified"]
        found += [root / path.lstrip("/") for root in roots if path != "/"]
    return [group for group in found if group.is_dir()]


def _unmount(folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in sorted(mounts, reverse=True):
        if path.startswith(f"{folder}/") and libc.umount2(path.encode(), 2) != 0:  # 2: MNT_DETACH
            raise OSError(ctypes.get_errno(), f"cannot unmount {path}")
