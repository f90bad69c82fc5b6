"""Run attacks outside of a sandbox as a control and inside one; check that they leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox import Limits, Provider, Sandbox, SandboxLost, SandboxSpec
from tests.sandbox.traces import held_mount_namespaces, traces, used_mount_namespaces

CONTROL_S = 60.0
BARE: tuple[str, ...] = ()  # a plain process of this machine, with its rights
# Root, in namespaces that end with it.
APART = (
    "unshare",
    "--mount",
    "--uts",
    "--net",
    "--ipc",
    "--propagation",
    "private",
)
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_INSIDE = (Path(__file__).parent / "inside.py").read_text()
# How a kernel answers that was built without the part under attack.
_LACKING = frozenset({"ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT"})
_HOST_SETTINGS = (
    "core_pattern",
    "hostname",
    "domainname",
    "shmmax",
    "pid_max",
    "sysrq",
    "randomize_va_space",
)
Act = Callable[[Sandbox], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The attempts of one run: {name: result} of the successful, {name: reason} of the denied."""

    through: dict[str, str]
    refused: dict[str, str]

    @classmethod
    def parse(cls, output: str) -> Outcomes:
        """Parse the lines that `inside.tell` prints; ignore all others."""
        found = cls({}, {})
        for line in output.splitlines():
            name, *rest = line.split("\t")
            if len(rest) == 2 and rest[0] in ("through", "refused"):
                (found.through if rest[0] == "through" else found.refused)[name] = rest[1]
        return found

    def names(self) -> set[str]:
        return set(self.through) | set(self.refused)


@asynccontextmanager
async def watched(provider: Provider, spec: SandboxSpec) -> AsyncIterator[None]:
    """Run commands in another sandbox meanwhile; each must succeed. Prints their latency."""
    async with await provider.start(spec) as neighbour:

        async def ask() -> None:
            while not done.is_set():
                requested = time.monotonic()
                assert (await neighbour.exec(["/bin/echo", "here"])).text == "here\n"
                waits.append(1000 * (time.monotonic() - requested))
                await asyncio.sleep(0.02)

        waits: list[float] = []
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())
            yield
            done.set()
        assert waits
        p95 = statistics.quantiles([*waits, *waits], n=20)[-1]
        print(
            f"another sandbox answered {len(waits)} commands: p95 {p95:.0f} ms, at most {max(waits):.0f} ms"
        )


def program(code: str) -> str:
    """Return the source of an attack program."""
    return f"{_INSIDE}\n{code}"


def control(code: str, *arguments: str, wrapped: Sequence[str] = BARE, before: str = "") -> Outcomes:
    """Run an attack outside of any sandbox, after the code `before`, which prepares its targets."""
    command = [*wrapped, sys.executable, "-c", program(f"{before}\n{code}"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CONTROL_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return Outcomes.parse(done.stdout)


async def attack(sandbox: Sandbox, code: str, *arguments: str, timeout_s: float = 60) -> Outcomes:
    """Run an attack in a sandbox."""
    result = await sandbox.exec(["python3", "-c", program(code), *arguments], timeout_s=timeout_s)
    assert result.exit_code == 0, result
    return Outcomes.parse(result.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTarget:
    """An open provider under attack, and the image of its sandboxes."""

    runner: asyncio.Runner
    provider: Provider
    spec: SandboxSpec
    state: Path

    def assert_denied(
        self,
        code: str,
        *arguments: str,
        wrapped: Sequence[str] = BARE,
        before: str = "",
        outside: Sequence[str] | None = None,
        spec: SandboxSpec | None = None,
        lacking: frozenset[str] = _LACKING,
    ) -> None:
        """Assert that every attempt of `code` succeeds outside and none inside.

        Attempts at what this kernel lacks (`lacking`: how it says so) are not counted outside.
        """
        free = control(code, *(arguments if outside is None else outside), wrapped=wrapped, before=before)
        broken = {name: why for name, why in free.refused.items() if why not in lacking}
        assert not broken, f"refused without a sandbox: {broken}"
        assert free.names(), "the attack attempts nothing"

        async def act(sandbox: Sandbox) -> None:
            held = await attack(sandbox, code, *arguments)
            assert not held.through
            assert set(held.refused) == free.names()

        self.run(act, spec)
        if not free.through:
            pytest.skip(f"this kernel lacks it, so there is no control: {free.refused}")

    def assert_contained(
        self, code: str, *arguments: str, limits: Limits, outside: Sequence[str] | None = None
    ) -> None:
        """Assert that `code`, which reports when it has exceeded `limits`, does so outside only.

        Inside it may be refused or killed, its sandbox with it; another sandbox answers all the while.
        """
        free = control(code, *(arguments if outside is None else outside))
        assert free.through, free
        assert not free.refused

        async def act(sandbox: Sandbox) -> None:
            async with watched(self.provider, self.with_image(SandboxSpec())):
                try:
                    result = await sandbox.exec(["python3", "-c", program(code), *arguments], timeout_s=15)
                except SandboxLost:
                    return
            assert not Outcomes.parse(result.text).through
            # something stopped it: an error that it told of, a signal, or the end of its time
            assert result.exit_code != 0 or Outcomes.parse(result.text).refused, result

        self.run(act, SandboxSpec(limits=limits), survives=False)

    def run(self, act: Act, spec: SandboxSpec | None = None, *, survives: bool = True) -> None:
        """Run `act` in a new sandbox; then nothing may be left of it, and the next one must work.

        `survives`: the sandbox itself still has to serve after the attack.
        """
        self.runner.run(self._run(act, self.with_image(spec or SandboxSpec()), survives))

    def with_image(self, spec: SandboxSpec) -> SandboxSpec:
        """Return `spec` with the image of this target."""
        return replace(spec, image=self.spec.image)

    async def _run(self, act: Act, spec: SandboxSpec, survives: bool) -> None:
        before, descriptors = self.host(), _open_files()
        async with await self.provider.start(spec) as sandbox:
            label = f"hone-sandbox:{sandbox.id}\0"
            lines = [line for line in traces(os.getpid(), self.state) if label in line]
            with held_mount_namespaces([line.split()[1] for line in lines]) as rooms:
                assert rooms
                await act(sandbox)
                try:
                    alive = (await sandbox.exec(["/bin/echo", "alive"])).text
                except SandboxLost:
                    assert not survives
                else:
                    assert alive == "alive\n" or not survives
                await sandbox.close()
                assert not rooms & used_mount_namespaces(), "a process of the sandbox outlived it"
        assert self.host() == before
        assert _open_files() <= descriptors
        async with await self.provider.start(self.with_image(SandboxSpec(limits=Limits()))) as following:
            assert (await following.exec(["/bin/echo", "next"])).text == "next\n"

    def host(self) -> dict[str, object]:
        """Return what no attack may change: this owner's traces and the machine's settings."""
        settings = Path("/proc/sys/kernel")
        return {
            "traces": sorted(traces(os.getpid(), self.state)),
            **{name: (settings / name).read_text() for name in _HOST_SETTINGS if (settings / name).exists()},
        }


def _open_files() -> set[str]:
    """Return the open files of this process by kind and inode. Other tests may only close some meanwhile."""
    found: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found.add(str(entry.readlink()))
    return found - {f"/proc/{os.getpid()}/fd"}
