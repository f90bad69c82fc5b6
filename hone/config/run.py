"""All settings of a run: the rooms' own, side by side. A room is handed its own group and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from hone.agents.settings import AgentSettings
from hone.evaluate.settings import EvaluateSettings
from hone.grading.settings import GradingSettings
from hone.policy.settings import EngineSettings, ModelSettings, SamplingSettings, TinyModelSettings
from hone.rollout.settings import RolloutSettings
from hone.sandbox.settings import SandboxSettings
from hone.settings import Settings
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

    agent: AgentSettings = AgentSettings(kind="demonstrator", prompts="tiny")
    """Who demonstrates."""


class RunSettings(Settings):
    """One run. A recipe is a TOML file with these keys."""

    run_dir: Path
    """Directory of everything the run writes; default: `runs/` and the recipe's name."""

    seed: int = 0
    """Seed of the order of tasks and of every reply, and of each group that names no seed of its own; runs
    that differ in it are independent."""

    model: ModelSettings | None = None
    """The policy. Needed wherever a model is asked; a scripted agent needs none."""

    makes_model: bool = False
    """Whether `hone train` makes the policy itself, where no model is named: the small one of `tiny_model`,
    taught by `demonstrations` of the first training tasks before it practises on the others."""

    tiny_model: TinyModelSettings = TinyModelSettings()
    """The small model that the quickstart makes."""

    tasks: TasksSettings = TasksSettings()
    """The problems."""

    sandbox: SandboxSettings = SandboxSettings()
    """Where commands run."""

    agent: AgentSettings = AgentSettings()
    """Who works on the problems."""

    engine: EngineSettings = EngineSettings()
    """What samples replies."""

    sampling: SamplingSettings = SamplingSettings()
    """How replies are drawn."""

    rollout: RolloutSettings = RolloutSettings()
    """How rollouts are collected."""

    grading: GradingSettings = GradingSettings()
    """How patches are graded."""

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
    def _one_model(self) -> RunSettings:
        if self.makes_model and self.model is not None:
            raise ValueError("makes_model has no effect beside model.path: remove one of them")
        return self
