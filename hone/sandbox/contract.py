"""The sandbox contract: the interface of every provider, and their common error policy.

    command fails                    -> ExecResult with its exit code
    command times out                -> ExecResult(timed_out=True), output so far, its whole process tree dead
    the sandbox is gone              -> SandboxLost
    the provider cannot serve        -> ProviderUnavailable (`retryable` says whether to try again)

`Sandbox.exec` validates its arguments; a provider implements `_exec` and the other abstract methods.
Every provider has to pass the suite `hone.sandbox.conformance`.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from hone.utils.errors import HoneError


class SandboxError(HoneError):
    """Base of all errors of sandboxes and providers."""

    code: ClassVar[str] = "sandbox_error"  # names the class on the wire (`hone.sandbox.remote.errors`)
    retryable: bool = False  # whether the same request may succeed later


class SandboxLost(SandboxError):
    """The sandbox is gone (closed, killed, its node lost) and can run no more commands."""

    code = "sandbox_lost"


class LeaseLost(SandboxLost):
    """The lease on a pool's sandbox expired, was closed, or is of an older generation."""

    code = "lease_lost"


class TooLarge(SandboxError):
    """A request, a file or a tree exceeds a bound that protects the host or a server."""

    code = "too_large"


class ProviderUnavailable(SandboxError):
    """The provider cannot serve this request."""

    code = "provider_unavailable"

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable


class QueueTimeout(ProviderUnavailable):
    """No sandbox became free before the deadline of the request."""

    code = "queue_timeout"
    retryable = True


class IncompleteSnapshot(SandboxError):
    """The sandbox has state that a snapshot cannot hold."""

    code = "incomplete_snapshot"

    def __init__(self, state: str) -> None:
        super().__init__(f"the sandbox has {state}, which a snapshot cannot hold")


class Unauthorized(ProviderUnavailable):
    """The token or the capability was refused."""

    code = "unauthorized"


ImageProblem = Literal[
    "unknown_image", "other_architecture", "registry_unavailable", "damaged_image", "disk_full"
]


class ImageUnavailable(ProviderUnavailable):
    """An image cannot be used; `problem` is the reason."""

    code = "image_unavailable"

    def __init__(self, message: str, *, problem: ImageProblem, retryable: bool = False) -> None:
        super().__init__(message, retryable=retryable)
        self.problem: ImageProblem = problem


LIMIT_BOUNDS: Mapping[str, tuple[float, float]] = {  # smallest and largest value of each field of Limits
    "memory_mib": (1, 1 << 24),
    "pids": (1, (1 << 22) - 2),  # process ids of a kernel; two more are for process 1 and its parent
    "cpus": (0.01, 8192),  # the shortest CPU quota of a kernel; its largest machine
    "disk_mib": (1, 1 << 24),
    "output_kib": (1, 8192),  # both streams fit into one reply of process 1
}
TIMEOUT_MAX_S = 7 * 86_400.0  # of one command
ARGUMENT_MAX = 131_071  # bytes of an argument or a variable; Linux passes no longer one (MAX_ARG_STRLEN)
PATH_MAX = 4095  # bytes of a path inside a sandbox, as the kernel counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of one sandbox. `Sandbox.enforced` reports how each is enforced.

    Raises ValueError for a value outside of LIMIT_BOUNDS, which a kernel or a wire format would not take.
    """

    memory_mib: int = 512  # of all its processes together
    pids: int = 128
    cpus: float = 1.0
    disk_mib: int = 256  # of the private upper layer, /tmp and /dev/shm together
    output_kib: int = 256  # kept of each stream of one exec, half head, half tail

    def __post_init__(self) -> None:
        for name, (low, high) in LIMIT_BOUNDS.items():
            if not low <= getattr(self, name) <= high:  # false for NaN, too
                raise ValueError(f"{name} must be from {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host directory or file, visible read-only inside the sandbox."""

    source: Path
    target: str


DEFAULT_WORKDIR = "/testbed"
TUNNEL_PATH = "/run/hone/service.sock"  # inside, the socket of `SandboxSpec.tunnel`
RESERVED = ("/proc", "/dev", "/sys", "/opt/hone", "/run/hone")  # directories inside that no spec may use


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A sandbox to start. Images: `host` (this machine's system), `docker://NAME`, `rootfs:DIRECTORY`."""

    image: str = "host"
    workdir: str = ""  # created and writable; "" is the image's own, else /testbed
    layer: Path | None = None  # host directory with workdir's initial content; never changed
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # added to the image's environment
    mounts: tuple[Mount, ...] = ()
    limits: Limits = field(default_factory=Limits)
    run: str = ""  # id of the run, for labels, fair queues and reconciliation
    network: tuple[str, ...] = ()  # `host:port` allowed through a proxy; empty: no network
    tunnel: Path | None = None  # unix socket of the host, mounted at TUNNEL_PATH
    snapshot: Path | None = None  # initial files, from `Sandbox.snapshot` of the same image

    def check_paths(self, reserved: tuple[str, ...] = RESERVED) -> None:
        """Raise ValueError for an invalid path inside, OSError for a missing path of the host."""
        for path in [*filter(None, [self.workdir]), *(mount.target for mount in self.mounts)]:
            clean = posixpath.normpath(path)
            if not path.startswith("/") or clean == "/" or ".." in path.split("/"):
                raise ValueError(
                    f"a path inside a sandbox must be absolute and without '..', not {path[:200]!r}"
                )
            if len(os.fsencode(path)) > PATH_MAX or "\0" in path:  # fsencode refuses lone surrogates
                raise ValueError(f"a path inside a sandbox has at most {PATH_MAX} bytes, none of them null")
            if any(clean == name or clean.startswith(name + "/") for name in reserved):
                raise ValueError(f"{path!r} is in a directory that sandboxes reserve")
        for source in [*(mount.source for mount in self.mounts), *([self.layer] if self.layer else [])]:
            if not source.exists():
                raise FileNotFoundError(f"{source} does not exist")
        if self.layer and not self.layer.is_dir():
            raise NotADirectoryError(f"{self.layer} is not a directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Result of one command. Streams keep head and tail when they exceed `Limits.output_kib`."""

    exit_code: int  # of the command; 128 + n when killed by signal n; -1 when timed out
    stdout: bytes
    stderr: bytes  # empty when merged
    stdout_bytes: int  # all bytes written, kept or not
    stderr_bytes: int
    timed_out: bool
    seconds: float

    @property
    def text(self) -> str:
        """Return stdout as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def ending(self) -> str:
        """Return how the command ended, with the last line of its errors or its output."""
        if self.timed_out:
            return f"it did not end within {self.seconds:.0f} s"
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return f"exit code {self.exit_code}" + (f": {lines[-1][-300:]}" if lines else "")


Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
WriteContext = Callable[[Path], None]  # makes a directory with a Dockerfile and its files; in a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Arguments of `Sandbox.exec` with all defaults filled in."""

    argv: list[str]
    timeout_s: float
    cwd: str
    env: dict[str, str]
    stdin: bytes
    merge_stderr: bool
    on_output: OnOutput | None


def _is_too_long(argument: str) -> bool:
    """Return whether Linux refuses to pass an argument, or a variable with its name, to any program."""
    return 4 * len(argument) > ARGUMENT_MAX < len(argument.encode("utf-8", "replace"))


def _too_long(program: str, merge_stderr: bool, on_output: OnOutput | None) -> ExecResult:
    """Return the result of a command that an argument keeps from starting, as a shell reports it."""
    said = f"sandbox: {program}: Argument list too long\n".encode("utf-8", "replace")
    if on_output is not None:
        on_output("stdout" if merge_stderr else "stderr", said)
    stdout, stderr = (said, b"") if merge_stderr else (b"", said)
    sizes = {"stdout_bytes": len(stdout), "stderr_bytes": len(stderr)}
    return ExecResult(exit_code=126, stdout=stdout, stderr=stderr, **sizes, timed_out=False, seconds=0.0)


class Sandbox(ABC):
    """A disposable, isolated environment for commands. Single use: it is never reset."""

    id: str
    spec: SandboxSpec  # with `workdir` filled in
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
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a shell command (str, by `bash -c`) or an argv (sequence) and wait for it.

        Args:
            timeout_s: wall-clock seconds from the start of the command, up to TIMEOUT_MAX_S. After that the
                command is killed with all its descendants, daemons included, and possibly with processes
                that other commands left behind meanwhile.
            cwd: default `spec.workdir`.
            env: added to the sandbox's environment.
            merge_stderr: write both streams to one pipe, so that their order is kept.
            on_output: called with each piece of output as it arrives, without the limit. It must not block.
        Raises:
            SandboxLost: the sandbox is gone, before or during the command.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:  # false for NaN, too
            raise ValueError(f"timeout_s must be positive and at most {TIMEOUT_MAX_S:.0f}, got {timeout_s}")
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if not argv or not all(isinstance(a, str) for a in argv):
            raise ValueError(f"a command is a string or a non-empty list of strings, got {command!r}")
        if any(map(_is_too_long, (*argv, *(f"{name}={value}" for name, value in (env or {}).items())))):
            return _too_long(argv[0], merge_stderr, on_output)
        return await self._exec(
            Command(
                argv=argv,
                timeout_s=timeout_s,
                cwd=cwd or self.spec.workdir,
                env=dict(env or {}),
                stdin=stdin,
                merge_stderr=merge_stderr,
                on_output=on_output,
            )
        )

    @abstractmethod
    async def _exec(self, command: Command) -> ExecResult: ...

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """Return a file's content; relative paths start at workdir.

        Raises FileNotFoundError, IsADirectoryError.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its parent directories."""

    @abstractmethod
    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox."""

    @abstractmethod
    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out of the sandbox; links are never followed on the host."""

    async def snapshot(self, target: Path, *, whole: bool = False) -> None:
        """Copy the changed files into the new directory `target`, for `SandboxSpec.snapshot`.

        No command should run meanwhile.

        Args:
            whole: raise IncompleteSnapshot, and copy nothing, where a sandbox started from the snapshot would
                differ from this one in more than the times of its inodes and the numbers of its processes:
                where a process is alive, say, or where a file is of a kind that the snapshot leaves out.
        Raises:
            SandboxError: the files are too large, too many or too deep.
            NotImplementedError: the provider has no snapshots.
        """
        raise NotImplementedError(f"{type(self).__name__} has no snapshots")

    @abstractmethod
    async def close(self) -> None:
        """Kill all its processes and remove all its resources. Safe to call twice."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of `hone doctor`."""

    name: str
    ok: bool
    detail: str  # how it is enforced, or the problem
    fix: str = ""  # the command that fixes it
    required: bool = True  # False: optional
    effect: str = ""  # what does not work without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks if check.required)


class Provider(Protocol):
    """Starts sandboxes. Use as an async context manager; leaving it closes all its sandboxes."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox that is ready to run commands. Raises ProviderUnavailable."""
        ...

    async def health(self) -> Health:
        """Probe what is enforced and what is missing, and how to fix it."""
        ...

    async def images(self) -> list[str]:
        """Return the local images, named as by `hone.sandbox.images.reference.canonical`."""
        ...

    async def digest(self, image: str) -> str:
        """Return the digest of an image, downloaded if missing; "" when it has none.

        Raises ProviderUnavailable.
        """
        ...

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        """Build a Dockerfile and keep the image as `image`, unless there is one already.

        Args:
            image: `docker://localhost/hone/NAME:TAG`.
            write_context: called only where the image is built.
            network: whether its RUN instructions have the network of this machine; else they have none.
        Raises:
            ProviderUnavailable: this provider builds nothing, or the Dockerfile cannot be built.
        """
        ...

    async def reconcile(self) -> int:
        """Remove resources of dead owners (processes, cgroups, directories); return their number."""
        ...

    async def __aenter__(self) -> Provider: ...

    async def __aexit__(self, *exc: object) -> None: ...
