"""Servers of Hone as processes that are killed and started again: same arguments, port and directories."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import httpx
import psutil

from hone.sandbox.remote.wire import NodeReply, StatusReply
from hone.utils.files import default_cache_dir
from tests.chaos.leftovers import belongings
from tests.sandbox.traces import traces
from tests.services.process import reserve_port
from tests.waiting import wait_until

TIMEOUT_S = 60.0  # for a process to start or end, or a call to begin; on a slow, busy machine
TOKEN = "the-token-of-all-nodes"  # with which an operator also asks the pool
CLIENT_TOKEN = "the-token-of-clients"
HONE = str(Path(sys.executable).with_name("hone"))
_ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
sys.stdout.write(urllib.request.urlopen(request, timeout=20).read().decode())
"""


@contextlib.contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Processes stand still (SIGSTOP) in the block; those that live are woken after it."""
    assert pids
    with contextlib.ExitStack() as stack:
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            stack.callback(_wake, descriptor)
        yield


def _wake(descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)


@dataclass(slots=True, eq=False, kw_only=True)
class Server:
    """A server process that can be killed and started again."""

    command: list[str]
    url: str
    folder: Path  # its own
    env: dict[str, str] = field(default_factory=dict[str, str])  # beside this process's
    enter: tuple[str, ...] = ()  # command that runs others in its network
    pids: list[int] = field(default_factory=list[int])  # of all its lives
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self.pids[-1]

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def beside(self, **options: str) -> Self:
        """Another like it, on a port of its own, with other values for some options."""
        port, command = str(reserve_port()), list(self.command)
        for name, value in {"port": port, **options}.items():
            command[command.index(f"--{name}") + 1] = value
        url = f"{self.url.rpartition(':')[0]}:{port}"
        return replace(self, command=command, url=url, pids=[], _process=None)

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def start(self) -> None:
        """Start it, and wait until it says that all is well."""
        assert not self.lives
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.enter, *self.command], env=self.environment(), stdout=log, stderr=log
            )
        self.pids.append(self._process.pid)
        wait_until(self.is_well, self.log)

    def is_well(self) -> bool:
        assert self.lives, self.log()
        try:
            return '"ok":true' in self.ask("/healthz")
        except (httpx.HTTPError, subprocess.CalledProcessError):
            return False

    def ask(self, path: str) -> str:
        """The reply to a GET."""
        if self.enter:
            command = [*self.enter, sys.executable, "-I", "-S", "-c", _ASK, f"{self.url}{path}", TOKEN]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=20).raise_for_status().text

    def kill(self) -> None:
        """kill -9 of this process, and of none that it has started."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as its operator does."""
        if self._process is None or not self.lives:
            return
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end on SIGTERM: {self.log()}") from None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]


@dataclass(slots=True, eq=False, kw_only=True)
class Node(Server):
    """`hone node`, with state of its own in its folder."""

    idle: set[str] = field(default_factory=set[str])  # what it has without any sandbox

    @property
    def state_dir(self) -> Path:
        return self.folder / "run" / "hone"

    @property
    def cache_dir(self) -> Path:
        return (
            Path(self.env["XDG_CACHE_HOME"], "hone") if "XDG_CACHE_HOME" in self.env else default_cache_dir()
        )

    def belongings(self) -> list[str]:
        """What it has, of files and control groups, beyond what it has while it is idle."""
        return [line for line in self._belongings(self.pid) if line not in self.idle]

    def start(self) -> None:
        Server.start(self)
        self.idle = {*self._has(self.pid)}

    def count(self, state: str) -> int:
        """Sandboxes that are starting, running or ending."""
        wanted = f'hone_node_sandboxes{{state="{state}"}} '
        lines = self.ask("/metrics").splitlines()
        return next(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))

    def listed(self) -> NodeReply:
        return NodeReply.model_validate_json(self.ask("/v1/node"))

    def spawner(self) -> int:
        """The spawn server of its provider of namespaces; those of its probes are younger."""
        children = psutil.Process(self.pid).children()
        return next(child.pid for child in sorted(children, key=psutil.Process.create_time) if _spawns(child))

    def left(self) -> list[str]:
        """What is there of lives that have ended, and beyond what is there while it is idle."""
        found = [line for pid in self.pids for line in self._has(pid)]
        if not self.lives:
            return found + [str(path) for path in self.state_dir.iterdir()]
        listed = [f"{self.url}: sandbox {row.id} of {row.lease}" for row in self.listed().sandboxes]
        return listed + [line for line in found if line not in self.idle]

    def _has(self, pid: int) -> list[str]:
        return [*traces(pid, self.state_dir), *self._belongings(pid)]

    def _belongings(self, pid: int) -> list[str]:
        return belongings(pid, [self.state_dir, self.cache_dir / "nodes"])


@dataclass(slots=True, eq=False, kw_only=True)
class Pool(Server):
    """`hone pool`"""

    def status(self) -> StatusReply:
        return StatusReply.model_validate_json(self.ask("/v1/status"))

    def left(self) -> list[str]:
        """Leases, requests that wait, and places that are taken."""
        if not self.lives:
            return []
        status = self.status()
        found = [f"lease {row.lease_id} ({row.state})" for row in status.leases]
        found += [f"{count} of run {run!r} wait" for run, count in status.queued.items()]
        taken = [(row.url, row.active + row.starting) for row in status.nodes]
        return found + [f"{count} places of {url}" for url, count in taken if count]


def _spawns(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
        return "hone-spawner:" in " ".join(process.cmdline())
    return False
