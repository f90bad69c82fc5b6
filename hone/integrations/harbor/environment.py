"""Harbor's environment on Hone's sandboxes: no Docker, and nothing left of a trial that ended."""

# harbor is no dependency of Hone: pyright finds its names only where it is installed
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import should_upload_environment_dir
from harbor.models.task.config import NetworkMode

from hone.environment import EnvironmentSettings, prepare_workspace, start_agent_sandbox
from hone.environment.result import take_base
from hone.integrations.harbor.mapping import exported_task, limits_of, network_of
from hone.integrations.harbor.shared import shared_provider
from hone.sandbox.contract import TIMEOUT_MAX_S, Sandbox, SandboxSpec
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.harbor.config import parse_config
from hone.tasks.harbor.folder import CONFIG, read_folder
from hone.tasks.harbor.serve import ARTIFACTS, DOCKERFILE_IMAGE, image_of, result_roots
from hone.tasks.workspace import GIT_ENV
from hone.types import Task

OUTPUT_KIB = 8192  # kept of each stream: Harbor reads results from it
_WORKDIR = "/app"  # where neither the task nor its image names one
_OWN = ("image", *SandboxSettings.model_fields)  # environment kwargs of this class


class HoneEnvironment(BaseEnvironment):
    """One sandbox per trial. Environment kwargs are Hone's sandbox settings, and `image`.

    Args:
        image: used in place of the task's: `host`, `rootfs:DIRECTORY` or `docker://NAME`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = {name: kwargs.pop(name) for name in _OWN if name in kwargs}
        self._image: str | None = own.pop("image", None)
        self.settings = SandboxSettings.model_validate({"output_kib": OUTPUT_KIB, **own})
        self.sandbox: Sandbox | None = None
        self.task: Task | None = None  # of Hone, where the folder was exported by it
        self.uploads: Mapping[str, str] = {}
        self._opened: Path | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "hone"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_ipv4_addresses=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        """Raise TaskError for what no sandbox of Hone has; GPUs, TPUs and Windows are refused by Harbor."""
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise TaskError("the task's environment needs Docker Compose, which Hone's sandboxes do not have")
        if self._host_mounts:
            raise TaskError("Hone's sandboxes take no mounts of this machine: remove the mounts")
        if self._network_policy.network_mode is NetworkMode.PUBLIC:
            self.logger.warning(
                'network_mode is "public", but a sandbox of Hone reaches only hosts of an allowlist'
            )
        network_of(self._network_policy.network_mode.value, self._network_policy.allowed_hosts)
        self.task = exported_task(self.environment_dir.parent)
        if self.task is not None and self._image is not None:
            raise TaskError(
                f"--ek image={self._image} has no effect on a task that Hone exported, whose image is in its "
                "record: remove it"
            )
        if self.task is None and self.image.startswith(DOCKERFILE_IMAGE):
            raise TaskError(
                "the task's image is built from a Dockerfile, which Hone does not do under `harbor run`: set "
                "environment.docker_image, or pass an image (--ek image=docker://NAME)"
            )

    @property
    def image(self) -> str:
        """The image of its sandbox, in Hone's notation."""
        return self._image or image_of(self.task_env_config.docker_image or "", {})

    @property
    def network(self) -> tuple[str, ...]:
        """What its sandbox may reach."""
        return network_of(self._network_policy.network_mode.value, self._network_policy.allowed_hosts)

    @property
    def workdir(self) -> str:
        return self.task_env_config.workdir or _WORKDIR

    @property
    def _folder(self) -> Path:
        if self._opened is None:
            raise RuntimeError("this environment has not started")
        return self._opened

    @property
    def base(self) -> Path:
        """The git directory of the files before the agent began."""
        return self._folder / "base.git"

    async def start(self, force_build: bool) -> None:
        self._opened = Path(tempfile.mkdtemp(prefix="hone-harbor-"))
        provider = await shared_provider(self.settings)
        try:
            config = self.task_env_config
            limits = limits_of(
                self.settings.limits(),
                cpus=config.cpus,
                memory_mb=config.memory_mb,
                storage_mb=config.storage_mb,
            )
            spec = SandboxSpec(
                image=self.image if self.task is None else "host",
                workdir=self.workdir,
                env={**GIT_ENV, **self._startup_env()},
                limits=limits,
                network=self.network,
            )
            if self.task is not None:
                workspace = await prepare_workspace(self.task, provider, self._folder / "workspaces")
                settings = EnvironmentSettings()
                self.sandbox = await start_agent_sandbox(self.task, workspace, spec, provider, settings)
            else:
                self.sandbox = await provider.start(spec)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            if self.task is None:
                await self._keep_base()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _keep_base(self) -> None:
        if self._enable_environment_dir_upload and should_upload_environment_dir(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        ):
            self.uploads = read_folder(self.environment_dir)
            await self._upload_environment_dir_after_start()
        roots = {self.workdir, ARTIFACTS}
        path = self.environment_dir.parent / CONFIG
        if path.is_file():
            for separate in (False, True):
                roots |= set(
                    result_roots(parse_config(path.read_text("utf-8")), self.workdir, separate=separate)
                )
        await take_base(
            self._sandbox, sorted(roots), self.base, timeout_s=self.task_env_config.build_timeout_sec
        )

    async def stop(self, delete: bool) -> None:
        sandbox, self.sandbox = self.sandbox, None
        try:
            if sandbox is not None:
                await sandbox.close()
        finally:
            if self._opened is not None:
                shutil.rmtree(self._opened, ignore_errors=True)

    @property
    def _sandbox(self) -> Sandbox:
        if self.sandbox is None:
            raise RuntimeError("the sandbox of this environment is not running")
        return self.sandbox

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        wanted = self._resolve_user(user)
        if wanted not in (None, 0, "0", "root"):
            raise TaskError(
                f"a sandbox of Hone has one user, so no command runs as {wanted!r}: remove the setting"
            )
        done = await self._sandbox.exec(
            command, cwd=cwd, env=self._merge_env(env), timeout_s=float(timeout_sec or TIMEOUT_MAX_S)
        )
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
            return_code=done.exit_code,
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._sandbox.upload(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._sandbox.upload(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await self._sandbox.download(source_path, target)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory of the sandbox over one of this machine; links that lead out of it are refused."""
        with tempfile.TemporaryDirectory(prefix="hone-harbor-") as folder:
            copy = Path(folder) / (posixpath.basename(source_dir.rstrip("/")) or "root")
            await self._sandbox.download(source_dir, copy)
            shutil.copytree(copy, target_dir, symlinks=True, dirs_exist_ok=True)
