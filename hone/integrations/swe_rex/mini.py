"""The environment of mini-swe-agent in a sandbox of Hone, named by its class in `environment_class`."""

from __future__ import annotations

import asyncio
import platform
from typing import Any

from minisweagent.environments.extra.swerex_docker import SwerexDockerEnvironment
from minisweagent.utils.serialize import recursive_merge
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import Command

from hone.integrations.swe_rex.deployment import HoneDeployment, HoneDeploymentConfig


class HoneEnvironmentConfig(HoneDeploymentConfig):
    """The section `environment` of a configuration of mini-swe-agent."""

    cwd: str = ""
    """Working directory of commands; default: the image's or the task's."""
    timeout: int = 30
    """Time limit of a command, in seconds."""
    interpreter: list[str] = ["bash", "-c"]
    """What runs a command, which becomes its last argument."""


class HoneEnvironment(SwerexDockerEnvironment):
    """One sandbox, from the first line of a run to its last."""

    def __init__(self, **options: Any) -> None:
        self.config = HoneEnvironmentConfig(**options)
        own = HoneDeploymentConfig.model_fields
        self.deployment = HoneDeployment(**{name: getattr(self.config, name) for name in own})
        asyncio.run(self.deployment.start())

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command; raise Submitted when its output submits, SandboxFailed when the sandbox is gone."""
        command = Command(
            command=[*self.config.interpreter, action.get("command", "")],
            cwd=cwd or self.config.cwd or None,
            timeout=timeout or self.config.timeout,
            merge_output_streams=True,
        )
        try:
            done = asyncio.run(self.deployment.runtime.execute(command))
        except CommandTimeoutError as error:
            output = {
                "output": str(error),
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {error}",
                "extra": {"exception_type": type(error).__name__, "exception": str(error)},
            }
        else:
            output = {"output": done.stdout, "returncode": done.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)

    def cleanup(self) -> None:
        """Close the sandbox; the end of the process does that, too."""
        asyncio.run(self.deployment.stop())
