"""A sandbox as a runtime of verifiers, lent to each run of an agent."""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import verifiers.v1 as vf
from verifiers.v1.runtimes import DockerRuntimeInfo

from hone.outcomes import Outcome
from hone.sandbox import Sandbox, SandboxError
from hone.sandbox.contract import TIMEOUT_MAX_S
from hone.types import Task


class HoneRuntime(vf.Runtime):
    """Runs commands in a sandbox that its owner has started.

    Its records call it a container: verifiers knows no other kinds than its own.
    """

    def __init__(self, sandbox: Sandbox, task: Task) -> None:
        super().__init__(sandbox.id)
        self.sandbox = sandbox
        self.hone_task = task
        self.limit: Outcome | None = None  # that ended the agent's work
        self.config = vf.DockerConfig(image=sandbox.spec.image)
        self.info = DockerRuntimeInfo(**self.config.model_dump(), id=sandbox.id)

    async def start(self) -> None:
        return None

    async def teardown(self) -> None:
        await self.sandbox.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> vf.ProgramResult:
        """Raises vf.SandboxError when the sandbox is gone."""
        try:
            done = await self.sandbox.exec(argv, env=self.process_env(env), timeout_s=TIMEOUT_MAX_S)
        except SandboxError as error:
            raise vf.SandboxError(f"{type(error).__name__}: {error}") from error
        return vf.ProgramResult(done.exit_code, done.text, done.stderr.decode("utf-8", "replace"))

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None:
            return await super()._read(path, max_bytes)
        try:
            return await self.sandbox.read(path)
        except (SandboxError, OSError) as error:
            raise vf.SandboxError(f"read {path!r}: {error}") from error

    async def write(self, path: str, data: bytes) -> None:
        try:
            await self.sandbox.write(path, data)
        except (SandboxError, OSError) as error:
            raise vf.SandboxError(f"write {path!r}: {error}") from error
