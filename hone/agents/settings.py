"""Settings of the agents: a union of one class per kind, with `kind` as its discriminator."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from hone.settings import Mark, Settings


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
    """Settings of every kind of agent."""

    turn_limit: int | None = Field(default=None, ge=0)
    """Replies per rollout, instead of the YAML's `agent.step_limit`; 0: no limit."""
    time_limit_s: float | None = Field(default=None, ge=0)
    """Seconds per rollout, instead of the YAML's `agent.wall_time_limit_seconds`; 0: no limit."""
    seed: Annotated[int, Mark.RUN_SEED] = 0
    """Seed of the demonstrator's choices, combined with each rollout's id; other agents ignore it."""

    @property
    def uses_policy(self) -> bool:
        """Return whether the policy, and not a script, gives the replies."""
        return isinstance(self, PolicyAgentSettings)


class PolicyAgentSettings(AgentSettings):
    """An agent whose replies come from the policy."""

    context: ContextSettings = ContextSettings()
    """How conversations are kept within the model's context length."""
    token_limit: int = Field(default=0, ge=0)
    """Sampled tokens per rollout; 0: no limit."""


class BashAgentSettings(PolicyAgentSettings):
    kind: Literal["bash", "mini-swe-agent"] = "bash"
    """The agent. `bash`, `debugger`, `blackbox` (a command-line program in the sandbox) and `mini-swe-agent`
    (the package) sample replies from the policy; the others are scripted."""
    prompts: Annotated[str, Mark.FILE_CONTENT] = "default"
    """YAML file with prompts and limits: `default`, `tiny`, or a path to a file in mini-swe-agent's format.
    Of `mini-swe-agent`, whose `default` is its own `swebench`: the name of a file that the package ships, or
    a path."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds per command, instead of the YAML's `environment.timeout`."""


class DebuggerAgentSettings(PolicyAgentSettings):
    kind: Literal["debugger"] = "debugger"
    pdb: bool = True
    """Whether the agent has the tool pdb; false is the rewrite-only ablation."""
    tool_calls: Literal["native", "text"] = "native"
    """How tools are called: `native`, in the model's own format by its renderer; `text`, for models whose
    chat template has no tools: described in the prompt, called in the text of a reply."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds per command; default: 30."""


class BlackboxAgentSettings(PolicyAgentSettings):
    kind: Literal["blackbox"] = "blackbox"
    program: Annotated[str, Mark.FILE_CONTENT] = Field(default="", validate_default=True)
    """A preset, such as `qwen-code` (`hone agents list` names all), or a path to a TOML file that describes
    the program."""

    @field_validator("program")
    @classmethod
    def _require_program(cls, program: str) -> str:
        if not program:
            raise ValueError("kind = 'blackbox' needs a program: a preset such as qwen-code, or a TOML file")
        return program


class ScriptSettings(AgentSettings):
    """An agent whose replies come from a script."""

    prompts: Annotated[str, Mark.FILE_CONTENT] = "default"
    """YAML file with prompts and limits: `default`, `tiny`, or a path to one in mini-swe-agent's format."""
    command_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds per command, instead of the YAML's `environment.timeout`."""


class ScriptedAgentSettings(ScriptSettings):
    kind: Literal["oracle", "noop"]


class DemonstratorSettings(ScriptSettings):
    kind: Literal["demonstrator"] = "demonstrator"
    shows: Literal["bash", "debugger"] = "bash"
    """The agent to demonstrate; `debugger` has its own prompts and ignores `prompts`."""
    pdb: bool = True
    """Whether a demonstrator of `debugger` has the tool pdb."""
    accuracy: float = Field(default=0.4, ge=0, le=1)
    """Probability that the demonstrator chooses the right fix; of several edits, that all are right."""
    favourite: float = Field(default=0.6, ge=0, le=1)
    """Probability that a wrong choice is the first wrong fix listed."""


AnyAgentSettings = Annotated[
    BashAgentSettings
    | DebuggerAgentSettings
    | BlackboxAgentSettings
    | ScriptedAgentSettings
    | DemonstratorSettings,
    Field(discriminator="kind"),
]
