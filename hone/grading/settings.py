"""Settings of grading, and of rewards for single turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from hone.environment.settings import EnvironmentSettings
from hone.policy.settings import AnyEngineSettings, LocalEngineSettings, ModelSettings
from hone.settings import Mark, Settings


class GradingSettings(EnvironmentSettings):
    """Grading of patches."""

    concurrency: Annotated[int, Mark.SAME_RESULTS] = Field(default=4, ge=1)
    """Maximum concurrent gradings."""
    controls: float = Field(default=0.25, ge=0, le=1)
    """Share of a task's test files that a grading runs a second time, with controls: tests with one
    expectation changed, which must fail. Evaluations run all of them."""
    cached_verdicts: Annotated[int, Mark.SAME_RESULTS] = Field(default=4096, ge=0)
    """Verdicts kept in memory, so that equal patches of one task are graded once."""

    def of_evaluation(self) -> GradingSettings:
        """Return these settings with all controls."""
        return self.model_copy(update={"controls": 1.0})


class JudgeSettings(Settings):
    """The process reward model: another model that scores each turn."""

    enabled: bool = False
    """Judge every turn that runs a command."""

    model: ModelSettings | None = None
    """The judge's model. Default: the model that training starts from, unchanged."""

    engine: AnyEngineSettings = LocalEngineSettings(context_tokens=16384)
    """The judge's engine; never the policy's, whose weights change."""

    votes: int = Field(default=3, ge=1)
    """Independent votes per turn; a turn's score is the mean of the valid votes, or 0 without any."""

    coefficient: float = Field(default=1.0, ge=0)
    """Reward of a score of 1; 0 records scores without training on them."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of a vote; at 0 all votes of a turn are equal."""

    max_tokens: int = Field(default=4096, gt=0)
    """Maximum length of a vote with its reasoning, in tokens; a longer vote is invalid."""

    concurrency: Annotated[int, Mark.SAME_RESULTS] = Field(default=32, ge=1)
    """Maximum concurrent votes of the run."""

    timeout_s: float = Field(default=120.0, gt=0)
    """Time limit for one vote, in seconds."""

    wait_s: float = Field(default=300.0, gt=0)
    """Time that a finished rollout waits for its last votes, in seconds; later votes do not count."""

    history_steps: int = Field(default=8, ge=0)
    """Number of earlier steps in the judge's prompt."""

    issue_characters: int = Field(default=8000, gt=0)
    """Length of the issue in the judge's prompt, in characters; longer texts keep head and tail."""

    result_characters: int = Field(default=4000, gt=0)
    """Length of the judged step's result in the prompt, in characters; longer texts keep head and tail."""

    history_result_characters: int = Field(default=1000, gt=0)
    """Length of each earlier step's command, and of its result, in the prompt; in characters."""

    skip_submit: bool = True
    """Do not judge the turn that submits the work: the hidden tests do."""

    @property
    def rewards(self) -> bool:
        """Whether its scores are part of a reward."""
        return self.enabled and self.coefficient > 0

    @model_validator(mode="after")
    def _whole_or_off(self) -> JudgeSettings:
        if not self.enabled:
            _refuse_set(self, "judge")
        elif self.model is not None and self.engine.kind == "openai":
            raise ValueError("judge.model has no effect on judge.engine.kind = 'openai': remove it")
        elif self.max_tokens >= self.engine.context_tokens:
            raise ValueError(
                f"judge.max_tokens = {self.max_tokens} leaves no room for a prompt in "
                f"judge.engine.context_tokens = {self.engine.context_tokens}: lower one or raise the other"
            )
        return self


class ProgressSettings(Settings):
    """Turn progress: the hidden tests on the patch after each turn that changed it."""

    enabled: bool = False
    """Grade the state after every turn; each new state costs one grading, equal patches are graded once."""

    coefficient: float = Field(default=1.0, ge=0)
    """Reward of progress from no hidden test to all of them; 0 only records it."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per turn in the reward gamma * potential(after) - potential(before)."""

    wait_s: float = Field(default=300.0, gt=0)
    """Time that a finished rollout waits for its last gradings, in seconds; an ungraded state counts as no
    change."""

    @property
    def rewards(self) -> bool:
        """Whether progress is part of a reward."""
        return self.enabled and self.coefficient > 0

    @model_validator(mode="after")
    def _whole_or_off(self) -> ProgressSettings:
        if not self.enabled:
            _refuse_set(self, "progress")
        return self


def _refuse_set(settings: Settings, group: str) -> None:
    """Raise ValueError for a value set in a disabled group; a resolved recipe contains empty subgroups."""
    for name, field in type(settings).model_fields.items():
        inner = isinstance(field.default, Settings)
        given = getattr(settings, name) != field.default if inner else name in settings.model_fields_set
        if given and name != "enabled" and getattr(settings, name) is not None:
            raise ValueError(
                f"{group}.{name} has no effect while {group}.enabled is false: remove it, or set "
                f"{group}.enabled = true"
            )
