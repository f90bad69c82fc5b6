"""What a run file may say about grading, and about rewards for single turns."""

from __future__ import annotations

from pydantic import Field, model_validator

from hone.environment.settings import EnvironmentSettings
from hone.policy.settings import EngineSettings, ModelSettings
from hone.settings import Settings


class GradingSettings(EnvironmentSettings):
    concurrency: int = Field(default=4, ge=1)
    """Maximum concurrent gradings."""
    cached_verdicts: int = Field(default=4096, ge=0)
    """Verdicts kept in memory, so that equal patches of one task are graded once."""


class JudgeSettings(Settings):
    """The process reward model: another model that says of each turn whether it was a good step."""

    enabled: bool = False
    """Judge every turn that ran a command."""

    model: ModelSettings | None = None
    """Which model judges; default: the one that training starts from, which stays as it was then."""

    engine: EngineSettings = EngineSettings(context_tokens=16384)
    """What samples its votes; never the policy's engine, whose weights change."""

    votes: int = Field(default=3, ge=1)
    """Votes per turn, drawn independently; a turn's score is the mean of the valid ones, or 0 without any."""

    coefficient: float = Field(default=1.0, ge=0)
    """What a score of 1 is worth in reward; 0: scores are recorded and train nothing."""

    temperature: float = Field(default=1.0, ge=0)
    """Of a vote; at 0 all votes of a turn are the same."""

    max_tokens: int = Field(default=4096, gt=0)
    """Longest vote, its reasoning included, in tokens; a longer one is invalid."""

    concurrency: int = Field(default=32, ge=1)
    """Votes of the whole run that are drawn at the same time; further ones wait."""

    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that one vote may take from the moment it is begun."""

    wait_s: float = Field(default=300.0, gt=0)
    """Seconds that a rollout that has ended waits for its last votes; what is not in by then is no vote."""

    history_steps: int = Field(default=8, ge=0)
    """Earlier steps that the judge is shown."""

    issue_characters: int = Field(default=8000, gt=0)
    """Of the issue, how much the judge is shown; head and tail, in characters."""

    result_characters: int = Field(default=4000, gt=0)
    """Of the result of the judged step, how much the judge is shown; head and tail, in characters."""

    history_result_characters: int = Field(default=1000, gt=0)
    """Of the command and of the result of each earlier step, how much is shown; in characters."""

    skip_submit: bool = True
    """Leave out the turn that hands in the work: the hidden tests judge it."""

    @property
    def rewards(self) -> bool:
        """Whether its scores are part of any reward."""
        return self.enabled and self.coefficient > 0

    @model_validator(mode="after")
    def _whole_or_off(self) -> JudgeSettings:
        if not self.enabled:
            _refuse_set(self, "judge")
        elif self.model is not None and self.engine.kind == "openai":
            raise ValueError("judge.model has no effect on judge.engine.kind = 'openai': remove it")
        elif self.max_tokens >= self.engine.context_tokens:
            raise ValueError(
                f"a vote of max_tokens = {self.max_tokens} leaves no room for a prompt in "
                f"judge.engine.context_tokens = {self.engine.context_tokens}: lower one or raise the other"
            )
        return self


class ProgressSettings(Settings):
    """Turn progress: the hidden tests on the patch as it stood after each turn that changed it."""

    enabled: bool = False
    """Grade the state after every turn. It costs a grading per new state; equal patches are graded once."""

    coefficient: float = Field(default=1.0, ge=0)
    """What progress from no hidden test to all of them is worth in reward; 0: recorded only."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per turn in the reward gamma * potential(after) - potential(before)."""

    wait_s: float = Field(default=300.0, gt=0)
    """Seconds that a rollout that has ended waits for its last gradings; a state that is not graded by then
    counts as no change."""

    @property
    def rewards(self) -> bool:
        """Whether progress is part of any reward."""
        return self.enabled and self.coefficient > 0

    @model_validator(mode="after")
    def _whole_or_off(self) -> ProgressSettings:
        if not self.enabled:
            _refuse_set(self, "progress")
        return self


def _refuse_set(settings: Settings, group: str) -> None:
    """A group that is off must be as it is by default; a resolved recipe names groups of groups empty."""
    for name, field in type(settings).model_fields.items():
        inner = isinstance(field.default, Settings)
        given = getattr(settings, name) != field.default if inner else name in settings.model_fields_set
        if given and name != "enabled" and getattr(settings, name) is not None:
            raise ValueError(
                f"{group}.{name} has no effect while {group}.enabled is false: remove it, or set "
                f"{group}.enabled = true"
            )
