"""Settings of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from hone.settings import Settings

ASKING = ("bash", "debugger", "blackbox", "mini-swe-agent")  # kinds that ask the policy
SCRIPTED = ("oracle", "noop", "demonstrator")
ONLY: Mapping[str, tuple[str, ...]] = {  # setting -> the kinds that it has an effect on
    "program": ("blackbox",),
    "pdb": ("debugger", "demonstrator"),
    "tool_calls": ("debugger",),
    "context": ASKING,
    "prompts": ("bash", "mini-swe-agent", *SCRIPTED),
    "token_limit": ASKING,
    "command_timeout_s": ("bash", "debugger", "mini-swe-agent", *SCRIPTED),
    "shows": ("demonstrator",),
    "accuracy": ("demonstrator",),
    "favourite": ("demonstrator",),
}


class ContextSettings(Settings):
    """How a conversation that grows too long is cut."""

    policy: Literal["none", "head_tail", "drop_thinking"] = "none"
    """`none`: send everything. `head_tail`: omit whole turns from the middle. `drop_thinking`: omit the
    reasoning of earlier replies."""
    head_ratio: float = Field(default=0.3, ge=0, le=1)
    """Of `head_tail`: the share of the available tokens for the oldest turns; the newest get the rest."""

    @model_validator(mode="after")
    def _head_has_a_tail(self) -> Self:
        if self.policy != "head_tail" and self.head_ratio != type(self).model_fields["head_ratio"].default:
            raise ValueError(f"head_ratio has no effect on policy = {self.policy!r}: remove it")
        return self


class AgentSettings(Settings):
    kind: Literal["bash", "debugger", "blackbox", "mini-swe-agent", "oracle", "noop", "demonstrator"] = "bash"
    """The agent. `bash`, `debugger`, `blackbox` (a command-line program in the sandbox) and `mini-swe-agent`
    (the package) ask the policy; the others are scripted."""
    program: str = ""
    """Of `blackbox`: a preset (`qwen-code`, `mini-swe-agent`) or the path of a TOML file."""
    pdb: bool = True
    """Whether `debugger` and its demonstrator have the tool pdb; false is the rewrite-only ablation."""
    tool_calls: Literal["native", "text"] = "native"
    """The format of `debugger`'s tool calls: `native`, the model's own, by its renderer; `text`, described in
    the prompt, for models whose chat template has no tools."""
    context: ContextSettings = ContextSettings()
    """How conversations are kept within the model's context length."""
    prompts: str = "default"
    """The YAML file with prompts and limits: `default`, `tiny`, or the path of a file in mini-swe-agent's
    format. For `mini-swe-agent`: the name of a file that the package ships (`default`: `swebench`), or a
    path."""
    turn_limit: int | None = Field(default=None, ge=0)
    """Replies per rollout, in place of the YAML's `agent.step_limit`; 0: no limit."""
    token_limit: int = Field(default=0, ge=0)
    """Sampled tokens per rollout; 0: no limit."""
    time_limit_s: float | None = Field(default=None, ge=0)
    """Seconds per rollout, in place of the YAML's `agent.wall_time_limit_seconds`; 0: no limit."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds per command, in place of the YAML's `environment.timeout`."""
    shows: Literal["bash", "debugger"] = "bash"
    """The agent that `demonstrator` demonstrates; `debugger` has its own prompts."""
    accuracy: float = Field(default=0.4, ge=0, le=1)
    """Probability that the demonstrator chooses the right fix."""
    favourite: float = Field(default=0.6, ge=0, le=1)
    """Probability that a wrong choice is the first wrong fix listed."""
    seed: int = 0
    """Seed of the demonstrator's choices; each rollout draws its own."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        for name, kinds in ONLY.items():
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect on kind = {self.kind!r}, only on {', '.join(kinds)}")
        if self.kind == "blackbox" and not self.program:
            raise ValueError("kind = 'blackbox' needs a program: a preset such as qwen-code, or a TOML file")
        return self
