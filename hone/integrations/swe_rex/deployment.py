"""The deployment of SWE-ReX on any provider of Hone (`swerex.deployment.abstract.AbstractDeployment`)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse

from hone.integrations.loop_thread import LoopThread
from hone.integrations.swe_rex.runtime import HoneRuntime
from hone.integrations.task_sandbox import find_task, start_task
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import GIT_ENV
from hone.utils.errors import HoneError


class HoneDeploymentConfig(BaseModel):
    """One sandbox: of an image, or of a task as an agent meets it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["hone"] = "hone"
    image: str = "host"
    """`host` (this machine's system), `docker://NAME`, or `rootfs:DIRECTORY`; a name alone is of an image in a
    registry."""
    tasks: Path | None = None
    """File of tasks, of which `task` names one; the image is then the task's."""
    task: str = ""
    """Id of the task."""
    env: dict[str, str] = {}
    """Environment variables of every command."""
    sandbox: SandboxSettings = SandboxSettings()
    """Provider and limits, the group `sandbox` of a recipe."""

    @model_validator(mode="after")
    def _task_in_file(self) -> HoneDeploymentConfig:
        if bool(self.task) != (self.tasks is not None):
            raise ValueError("pass tasks (a file) and task (an id in it) together, or neither")
        return self

    def get_deployment(self) -> HoneDeployment:
        return HoneDeployment.from_config(self)


class HoneDeployment(AbstractDeployment):
    """Starts one sandbox with a provider of its own, in a thread: each call may come from another event loop."""

    def __init__(self, *, logger: logging.Logger | None = None, **options: Any) -> None:
        """
        Args:
            options: the fields of HoneDeploymentConfig.
        """
        self.logger = logger or logging.getLogger("rex-deploy")
        self._config = HoneDeploymentConfig(**options)
        self._hooks = CombinedDeploymentHook()
        self._thread: LoopThread | None = None
        self._stack = AsyncExitStack()
        self._runtime: HoneRuntime | None = None

    @classmethod
    def from_config(cls, config: HoneDeploymentConfig) -> HoneDeployment:
        return cls(**dict(config))

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> HoneRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    async def start(self) -> None:
        """Start the sandbox. Raises DeploymentStartupError."""
        await self.stop()
        self._hooks.on_custom_step("Starting a sandbox")
        self._thread = LoopThread("hone-deployment")
        try:
            sandbox = await self._thread.run(self._open())
        except (HoneError, OSError, ValueError) as error:
            await self.stop()
            raise DeploymentStartupError(f"{type(error).__name__}: {error}") from error
        except BaseException:
            await self.stop()
            raise
        self._runtime = HoneRuntime(sandbox, thread=self._thread, logger=self.logger)

    async def stop(self) -> None:
        """Close the sandbox and the provider; safe to call twice."""
        thread, runtime = self._thread, self._runtime
        self._thread = self._runtime = None
        if runtime is not None:
            await runtime.close()
        if thread is not None:
            await thread.run(self._stack.aclose())
            await thread.stop()

    async def _open(self) -> Sandbox:
        config = self._config
        provider = await self._stack.enter_async_context(make_provider(config.sandbox))
        env = {**GIT_ENV, **config.env}
        spec = SandboxSpec(image=_image(config.image), env=env, limits=config.sandbox.limits())
        if config.tasks is None:
            sandbox = await provider.start(spec)
        else:
            task = await asyncio.to_thread(find_task, config.tasks, config.task)
            sandbox = await start_task(task, provider, spec)
        return await self._stack.enter_async_context(sandbox)


def _image(name: str) -> str:
    return name if name == "host" or "://" in name or name.startswith("rootfs:") else f"docker://{name}"
