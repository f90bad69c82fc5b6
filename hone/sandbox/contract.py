"""The sandbox contract: what every provider offers, and the one error policy they share.

    command fails                    -> ExecResult with its exit code
    command times out                -> ExecResult(timed_out=True), output so far, its whole process tree dead
    the sandbox is gone              -> SandboxLost
    the provider cannot serve        -> ProviderUnavailable (`retryable` says whether to try again)

`Sandbox.exec` and its siblings own this policy; a provider implements the underscored methods only.
`hone.sandbox.conformance` is the suite that any provider has to pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class SandboxError(Exception):
    """Base of everything a sandbox or a provider raises."""


class SandboxLost(SandboxError):
    """The sandbox is gone (closed, killed, its node lost); nothing more can be run in it."""


class ProviderUnavailable(SandboxError):
    """The provider cannot serve this request."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of one sandbox. What is really enforced is reported by `Sandbox.enforced`."""

    memory_mib: int = 512  # of all its processes together
    pids: int = 128
    cpus: float = 1.0
    disk_mib: int = 256  # of the private upper layer, /tmp and /dev/shm together
    output_kib: int = 256  # kept of each stream of one exec, half head, half tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host directory or file, visible read-only inside the sandbox."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    image: str = "host"
    workdir: str = "/testbed"  # created and writable
    layer: Path | None = None  # host directory that is workdir's initial content; never written to
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # all that commands see beside PATH, HOME
    mounts: tuple[Mount, ...] = ()
    limits: Limits = field(default_factory=Limits)
    run: str = ""  # the run that owns it, for labels and reconciliation


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What one command did. Streams keep head and tail when they exceed `Limits.output_kib`."""

    exit_code: int  # of the command; 128 + n when killed by signal n; -1 when timed out
    stdout: bytes
    stderr: bytes  # empty when merged
    stdout_bytes: int  # total written, kept or not
    stderr_bytes: int
    timed_out: bool
    seconds: float

    @property
    def text(self) -> str:
        """stdout as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")


class Sandbox(ABC):
    """A disposable, isolated place to run commands. Single use: closed once, never reset."""

    id: str
    spec: SandboxSpec
    enforced: Mapping[str, str]  # limit or isolation -> how it is enforced ("cgroup", "rlimit", ..., "none")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        merge_stderr: bool = False,
    ) -> ExecResult:
        """Run a shell command (str, by `bash -c`) or an argv (sequence) and wait for it.

        Args:
            timeout_s: wall clock, from the start of the command; must be positive.
            cwd: default `spec.workdir`.
            env: added to the sandbox's own.
            merge_stderr: write both streams to one pipe, so that their order is kept.
        Raises:
            SandboxLost: the sandbox is gone, before or during the command.
        """
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if not argv or not all(isinstance(a, str) for a in argv):
            raise ValueError(f"a command is a string or a non-empty list of strings, got {command!r}")
        return await self._exec(
            argv, timeout_s, cwd or self.spec.workdir, dict(env or {}), stdin, merge_stderr
        )

    @abstractmethod
    async def _exec(
        self,
        argv: list[str],
        timeout_s: float,
        cwd: str,
        env: dict[str, str],
        stdin: bytes,
        merge_stderr: bool,
    ) -> ExecResult: ...

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """A file's content; relative paths start at workdir. Raises FileNotFoundError, IsADirectoryError."""

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its parent directories."""

    @abstractmethod
    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox."""

    @abstractmethod
    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out of the sandbox; links are never followed on the host."""

    @abstractmethod
    async def close(self) -> None:
        """Kill everything in it and remove every trace. Safe to call twice."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `hone doctor`."""

    name: str
    ok: bool
    detail: str  # what is enforced, or what is missing
    mend: str = ""  # the command that mends it
    required: bool = True  # False: Hone runs without it, with less


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks if check.required)


class Provider(Protocol):
    """What makes sandboxes. Use as an async context manager; leaving it closes every sandbox it started."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox that is ready to run commands. Raises ProviderUnavailable."""
        ...

    async def health(self) -> Health:
        """Probe for real: what is enforced, what is missing, and what mends it."""
        ...

    async def reconcile(self) -> int:
        """Remove what dead owners left (processes, mounts, cgroups, directories); return their number."""
        ...

    async def __aenter__(self) -> Provider: ...

    async def __aexit__(self, *exc: object) -> None: ...
