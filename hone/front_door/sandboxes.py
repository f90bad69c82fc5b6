"""`hone.sandbox`: a sandbox for `with` and for `async with`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from hone.environment import extract_patch
from hone.front_door.arguments import Overrides, resolved
from hone.front_door.blocking import Held
from hone.integrations.task_sandbox import start_task
from hone.launch.defaults import REPOSITORY_LIMITS
from hone.sandbox import ExecResult, OnOutput, Sandbox, SandboxSpec, make_provider
from hone.tasks.workspace import GIT_ENV
from hone.types import Task
from hone.utils.errors import UsageError

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


def sandbox(
    image: str = "host",
    *,
    task: Task | None = None,
    folder: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    network: Sequence[str] = (),
    settings: Overrides | None = None,
) -> SandboxSession:
    """Return a sandbox to open: `with` gives a BlockingSandbox, `async with` the Sandbox of the contract.

    It has its own files, processes and limits, no network, and is removed when the block ends.

    Args:
        image: "host" (this machine's system, read-only), "docker://NAME" or "rootfs:DIRECTORY".
        task: start as an agent meets this task, at its commit and in its image.
        folder: directory of this machine whose copy is the working directory's content.
        env: environment variables of commands.
        network: `host:port` that commands may reach, through a proxy.
        settings: setting -> value, such as {"sandbox.memory_mib": 4096, "sandbox.provider": "docker"}.

    Raises:
        UsageError: `task` with an image or a folder.
        ConfigError: `settings` holds an unknown name or an invalid value.
        ProviderUnavailable, TaskError: when it is opened, and cannot be.

    Example:
        with hone.sandbox(folder="my-project") as box:
            print(box.exec("python -m pytest -q", timeout_s=120).text)
    """
    if task is not None and (image != "host" or folder is not None):
        raise UsageError("a task has its own image and files: pass either task, or image and folder")
    run = resolved(None, settings, base=REPOSITORY_LIMITS)
    layer = None if folder is None else Path(folder).resolve()
    variables = dict(env or {}) if task is None else {**GIT_ENV, **(env or {})}

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Sandbox]:
        spec = SandboxSpec(
            image=image, layer=layer, env=variables, network=tuple(network), limits=run.sandbox.limits()
        )
        async with make_provider(run.sandbox) as provider:
            start = provider.start(spec) if task is None else start_task(task, provider, spec, run.grading)
            async with await start as started:
                yield started

    return SandboxSession(opened, task)


class SandboxSession:
    """A sandbox that is open inside of its `with` or `async with` block, once at a time."""

    def __init__(self, opened: OpenSandbox, task: Task | None) -> None:
        self._opened, self._task = opened, task
        self._held = Held("the sandbox", opened)
        self._async: AbstractAsyncContextManager[Sandbox] | None = None

    def __enter__(self) -> BlockingSandbox:
        return BlockingSandbox(self._held, self._held.enter(), self._task)

    def __exit__(self, *exc: object) -> None:
        self._held.leave()

    async def __aenter__(self) -> Sandbox:
        self._async = self._opened()
        return await self._async.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        assert self._async is not None, "it was entered"
        await self._async.__aexit__(None, None, None)


class BlockingSandbox:
    """The methods of `hone.sandbox.contract.Sandbox` for code that blocks; open inside of `with`."""

    def __init__(self, held: Held[Sandbox], inner: Sandbox, task: Task | None) -> None:
        self._held, self._inner, self._task = held, inner, task

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def workdir(self) -> str:
        """The directory in which commands run by default."""
        return self._inner.spec.workdir

    @property
    def enforced(self) -> Mapping[str, str]:
        """Limit or isolation -> how it is enforced ("cgroup", "rlimit", ..., "none")."""
        return self._inner.enforced

    def exec(
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
        """Run a shell command (str) or an argv (sequence) and wait for it; see `Sandbox.exec`.

        A command that fails or times out is a result, not an error. Raises SandboxLost.
        """
        return self._held.run(
            self._inner.exec(
                command,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                merge_stderr=merge_stderr,
                on_output=on_output,
            )
        )

    def read(self, path: str) -> bytes:
        """Return a file's content; relative paths start at `workdir`. Raises FileNotFoundError."""
        return self._held.run(self._inner.read(path))

    def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file (text as UTF-8), making its parent directories."""
        content = data.encode() if isinstance(data, str) else data
        self._held.run(self._inner.write(path, content, mode=mode))

    def upload(self, source: str | Path, target: str) -> None:
        """Copy a file or directory tree of this machine into the sandbox."""
        self._held.run(self._inner.upload(Path(source), target))

    def download(self, source: str, target: str | Path) -> None:
        """Copy a file or directory tree out of the sandbox."""
        self._held.run(self._inner.download(source, Path(target)))

    def patch(self) -> str:
        """Return the changes since the task's commit, for `hone.grade`.

        Raises UsageError without a task, BrokenTree where git cannot tell the changes.
        """
        if self._task is None:
            raise UsageError("a patch is against a task's commit: open the sandbox with task=")
        return self._held.run(extract_patch(self._inner, self._task))
