"""What a run file may say about its agent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hone.settings import Settings


class AgentSettings(Settings):
    kind: Literal["bash", "oracle", "noop", "demonstrator"] = "bash"
    """Which agent works on the tasks: `bash` asks the policy; the others are scripted."""
    prompts: str = "default"
    """The YAML with prompts and limits: `default`, `tiny`, or a path to a file in mini-swe-agent's format."""
    turn_limit: int | None = Field(default=None, ge=0)
    """Replies per rollout, in place of the YAML's `agent.step_limit`; 0: no limit."""
    token_limit: int = Field(default=0, ge=0)
    """Sampled tokens per rollout; 0: no limit."""
    time_limit_s: float | None = Field(default=None, ge=0)
    """Seconds per rollout, in place of the YAML's `agent.wall_time_limit_seconds`; 0: no limit."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds per command, in place of the YAML's `environment.timeout`."""
    accuracy: float = Field(default=0.4, ge=0, le=1)
    """Probability that the demonstrator picks the right fix."""
    favourite: float = Field(default=0.6, ge=0, le=1)
    """Probability that a wrong demonstrator makes its favourite mistake, the first wrong fix listed."""
    seed: int = 0
    """Seed of the demonstrator's choices, drawn anew for each rollout."""
