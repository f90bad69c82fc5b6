"""All settings of a run: the rooms' own, side by side. A room is handed its own group and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from hone.agents.settings import AnyAgentSettings, BashAgentSettings, DemonstratorSettings
from hone.evaluate.settings import EvaluateSettings
from hone.grading.settings import GradingSettings, JudgeSettings, ProgressSettings
from hone.policy.settings import (
    AnyEngineSettings,
    LocalEngineSettings,
    ModelSettings,
    SamplingSettings,
    TinyModelSettings,
)
from hone.rollout.settings import RolloutSettings
from hone.sandbox.settings import SandboxSettings
from hone.settings import Mark, Settings
from hone.tasks.settings import TasksSettings
from hone.train.settings import SftSettings, TrainSettings


class DemonstrationSettings(Settings):
    """The conversations that `hone sft` learns from."""

    path: Path | None = None
    """A file of demonstrations, or the directory of a run whose resolved rollouts are imitated; default:
    recorded into `run_dir`."""

    rollouts: int = Field(default=512, ge=1)
    """Demonstrations to record, of the tasks of the training set in turn."""

    graded: int = Field(default=128, ge=0)
    """Demonstrations of the quickstart that are also graded, to know how often the demonstrator is right."""

    agent: AnyAgentSettings = DemonstratorSettings(prompts="tiny")
    """Who demonstrates."""


class RunSettings(Settings):
    """One run. A recipe is a TOML file with these keys."""

    run_dir: Annotated[Path, Mark.SAME_RESULTS]
    """Directory of everything the run writes; default: `runs/` and the recipe's name."""

    seed: int = 0
    """Seed of the order of tasks and of every reply, and of each group that names no seed of its own; runs
    that differ in it are independent."""

    model: ModelSettings | None = None
    """The policy. Needed wherever a model is asked; a scripted agent needs none."""

    makes_model: bool = False
    """Whether `hone train` makes the policy itself where no model is named: the small one of `tiny_model`,
    taught by `demonstrations` of the first training tasks before it practises on the others."""

    tiny_model: TinyModelSettings = TinyModelSettings()
    """The small model that the quickstart makes."""

    tasks: TasksSettings = TasksSettings()
    """The problems."""

    sandbox: SandboxSettings = SandboxSettings()
    """Where commands run."""

    agent: AnyAgentSettings = BashAgentSettings()
    """Who works on the problems."""

    engine: AnyEngineSettings = LocalEngineSettings()
    """What samples replies."""

    sampling: SamplingSettings = SamplingSettings()
    """How replies are drawn."""

    rollout: RolloutSettings = RolloutSettings()
    """How rollouts are collected."""

    grading: GradingSettings = GradingSettings()
    """How patches are graded."""

    judge: JudgeSettings = JudgeSettings()
    """Who scores single turns, by looking at them."""

    progress: ProgressSettings = ProgressSettings()
    """Whether single turns are scored by the hidden tests."""

    groups_per_step: int = Field(default=8, ge=1)
    """Groups, each of one task, that a training step collects."""

    train: TrainSettings = TrainSettings()
    """Reinforcement learning."""

    demonstrations: DemonstrationSettings = DemonstrationSettings()
    """What supervised training learns from."""

    sft: SftSettings = SftSettings()
    """Supervised training."""

    evaluate: EvaluateSettings = EvaluateSettings()
    """How a fixed policy is measured."""

    @model_validator(mode="after")
    def _judge_is_not_the_policy(self) -> RunSettings:
        shared = set(self.judge.engine.addresses) & set(self.engine.addresses)
        if self.judge.enabled and shared:
            raise ValueError(
                f"judge.engine.urls: {', '.join(sorted(shared))} serves the policy, whose weights change: "
                "give the judge servers of its own"
            )
        return self

    @model_validator(mode="after")
    def _turn_rewards_are_used(self) -> RunSettings:
        algorithm = self.train.algorithm
        made = self.judge.rewards or self.progress.rewards
        if algorithm.uses_turns and not made:
            raise ValueError(
                f"train.algorithm ({algorithm.named}) needs rewards for single turns: set judge.enabled or "
                "progress.enabled, with a coefficient above 0"
            )
        if made and not algorithm.uses_turns:
            raise ValueError(
                f"the turns' rewards have no effect with train.algorithm ({algorithm.named}): set "
                "train.algorithm.name = 'step_wise' or train.algorithm.reward = 'final', or the coefficients "
                "of judge and progress to 0 to record scores only"
            )
        return self
