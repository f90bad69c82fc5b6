"""Hone's sandboxes as an environment of the package (its protocol `minisweagent.Environment`)."""

from __future__ import annotations

import platform
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from hone.integrations.mini_swe_agent.rollout import Rollout


class SandboxEnvironmentConfig(BaseModel):
    """The section `environment` of the YAML."""

    cwd: str
    env: dict[str, str]
    timeout: int | float
    interpreter: list[str]


class SandboxEnvironment:
    """One running sandbox; the caller closes it."""

    def __init__(self, rollout: Rollout) -> None:
        scaffold = rollout.scaffold
        self.config = SandboxEnvironmentConfig(
            cwd=scaffold.cwd or rollout.workdir,
            env=dict(scaffold.env),
            timeout=scaffold.timeout_s,
            interpreter=list(scaffold.interpreter),
        )
        self._rollout = rollout

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run a command. Raises Submitted when its output submits."""
        config = self.config
        result = self._rollout.execute(
            action.get("command", ""), timeout_s=config.timeout, cwd=cwd or config.cwd, env=config.env
        )
        if result.submits(self._rollout.scaffold.submits):
            self._rollout.end_turn([])
            submission = "".join(result.output.lstrip().splitlines(keepends=True)[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return result.variables

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}
