"""Sandboxes for the recipes of tinker-cookbook: `hone.integrations.tinker_cookbook:sandbox_factory`.

A recipe's own reward function grades in the sandbox of its agent.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from hone.integrations.images import environment_image
from hone.integrations.peer import require

require("tinker-cookbook", ">=0.6.1,<0.7", "pip install 'tinker-cookbook>=0.6.1,<0.7'")

from tinker_cookbook.sandbox import SandboxResult, SandboxTerminatedError  # noqa: E402

from hone.sandbox import Provider, Sandbox, SandboxError, SandboxSpec, make_provider  # noqa: E402
from hone.sandbox.settings import SandboxSettings  # noqa: E402
from hone.utils.concurrency import cancel_all  # noqa: E402

T = TypeVar("T")
OUTPUT_BYTES = 128 * 1024  # kept of each stream where a call names no limit


class HoneSandbox:
    """A sandbox as the cookbook calls it (`tinker_cookbook.sandbox.SandboxInterface`).

    Args:
        sandbox: closed with everything else in `stack`.
        lifetime_s: seconds after which it is closed in any case.
    """

    def __init__(self, sandbox: Sandbox, stack: AsyncExitStack, lifetime_s: float) -> None:
        self._sandbox, self._stack = sandbox, stack
        self._expiry = asyncio.create_task(self._expire(lifetime_s))

    @property
    def sandbox_id(self) -> str:
        return self._sandbox.id

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Raises SandboxTerminatedError."""
        await self._run(self._sandbox.exec("true", timeout_s=timeout), timeout)

    async def run_command(
        self,
        command: str,
        workdir: str | None = None,
        timeout: int = 60,
        max_output_bytes: int | None = None,
    ) -> SandboxResult:
        """Run a command in a login shell; a timeout has exit code -1. Raises SandboxTerminatedError."""
        argv = ["bash", "-lc", command]
        done = await self._run(self._sandbox.exec(argv, cwd=workdir, timeout_s=timeout), timeout)
        kept = OUTPUT_BYTES if max_output_bytes is None else max_output_bytes
        stdout, stderr = (data[:kept].decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        if done.timed_out:
            stderr += f"\nThe command was killed after {timeout} s."
        return SandboxResult(stdout=stdout, stderr=stderr, exit_code=done.exit_code)

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        """Return a file's content as stdout; exit code 1: it cannot be read."""
        try:
            data = await self._run(self._sandbox.read(path), timeout)
        except OSError as error:
            return SandboxResult(stdout="", stderr=f"{path}: {error}", exit_code=1)
        return SandboxResult(stdout=data[:max_bytes].decode("utf-8", "replace"), stderr="", exit_code=0)

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        """Write a file with its parents; exit code 1: it cannot be written."""
        data = content.encode() if isinstance(content, str) else content
        try:
            await self._run(self._sandbox.write(path, data, mode=0o755 if executable else 0o644), timeout)
        except OSError as error:
            return SandboxResult(stdout="", stderr=f"{path}: {error}", exit_code=1)
        return SandboxResult(stdout="", stderr="", exit_code=0)

    async def cleanup(self) -> None:
        """Close the sandbox; safe to call twice."""
        await cancel_all([self._expiry])
        await self._stack.aclose()

    async def _expire(self, lifetime_s: float) -> None:
        await asyncio.sleep(lifetime_s)
        await self._sandbox.close()

    async def _run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Raises SandboxTerminatedError for a lost sandbox, TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s + 30):  # `exec` has its own; this bounds the transport
                return await work
        except SandboxError as error:
            raise SandboxTerminatedError(f"{type(error).__name__}: {error}") from error


async def sandbox_factory(
    env_dir: Path, timeout: int, *, settings: SandboxSettings | None = None
) -> HoneSandbox:
    """Start a sandbox of a Harbor task; the cookbook calls it with two arguments.

    Args:
        env_dir: the task's folder `environment`.
        timeout: lifetime of the sandbox, in seconds.
    Raises:
        TaskError: the task names no image.
        SandboxError: the image cannot be built, or no sandbox could be started.
    """
    settings = settings or SandboxSettings()
    async with AsyncExitStack() as stack:
        provider: Provider = await stack.enter_async_context(make_provider(settings))
        image, workdir = await environment_image(env_dir, provider)
        spec = SandboxSpec(image=image, workdir=workdir, limits=settings.limits())
        sandbox = await stack.enter_async_context(await provider.start(spec))
        return HoneSandbox(sandbox, stack.pop_all(), timeout)
