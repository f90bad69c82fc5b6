"""All settings of a run, one group per package; each package receives only its own group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from hone.agents.settings import AnyAgentSettings, BashAgentSettings, DemonstratorSettings
from hone.config.remote_learners import remote_learner_problem
from hone.config.settings import PlacementSettings
from hone.evaluate.settings import EvaluateSettings
from hone.grading.settings import GradingSettings, JudgeSettings, ProgressSettings
from hone.policy.settings import (
    AnyEngineSettings,
    LocalEngineSettings,
    ModelSettings,
    SamplingSettings,
    ServerEngineSettings,
    TinkerEngineSettings,
    TinyModelSettings,
)
from hone.rollout.settings import RolloutSettings
from hone.sandbox.settings import SandboxSettings
from hone.settings import Mark, Settings
from hone.simulate.settings import SimulateSettings
from hone.tasks.settings import TasksSettings
from hone.train.settings import MetricsSettings, SftSettings, TrainSettings

Command = Literal["sft", "train", "replay", "eval", "quickstart"]
SAMPLING: tuple[Command, ...] = ("train", "eval", "quickstart")  # the commands that open an engine


class DemonstrationSettings(Settings):
    """Demonstrations for `hone sft` and the quickstart."""

    path: tuple[Path, ...] = ()
    """Files of demonstrations (JSONL, or Parquet with `messages`, `tools` and `enable_thinking`), and
    directories of runs and evaluations whose rollouts are used, such as a teacher's; one or a list. Default:
    record demonstrations into `run_dir`."""

    only_resolved: bool = True
    """Of a directory, use only rollouts that resolved their task; false: all without an infrastructure
    fault."""

    per_task: int | None = Field(default=None, ge=1)
    """Most conversations of one task, those with the shortest replies; default: all."""

    rollouts: int = Field(default=512, ge=1)
    """Number of demonstrations to record, on the training tasks in order."""

    graded: int = Field(default=128, ge=0)
    """Number of quickstart demonstrations to grade, which measures the demonstrator's resolve rate."""

    agent: AnyAgentSettings = DemonstratorSettings(prompts="tiny")
    """Agent that records the demonstrations."""

    @field_validator("path", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, (str, Path)) else value

    @model_validator(mode="after")
    def _selection_has_a_source(self) -> DemonstrationSettings:
        for name in ("only_resolved", "per_task"):
            if not self.path and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"demonstrations.{name} has no effect on demonstrations that are recorded: set "
                    "demonstrations.path, or remove it"
                )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where settings come from; settings with the same values are equal wherever these come from."""

    recipes: tuple[str, ...] = field(default=(), compare=False)


class RunSettings(Settings):
    """One run. A recipe is a TOML file with these keys."""

    run_dir: Annotated[Path, Mark.SAME_RESULTS]
    """Directory of all files of the run; default: `runs/` and the recipe's name."""

    seed: int = 0
    """Seed of task order and replies, and default seed of groups with their own seed; runs with different
    seeds are independent."""

    model: ModelSettings | None = None
    """The policy's model; not needed for a scripted agent."""

    makes_model: bool = False
    """Whether `hone train` without a model creates the one of `tiny_model`: it is trained on `demonstrations`
    of the first training tasks, then by RL on the other tasks."""

    tiny_model: TinyModelSettings = TinyModelSettings()
    """The small model that the quickstart creates."""

    tasks: TasksSettings = TasksSettings()
    """Tasks and splits."""

    sandbox: SandboxSettings = SandboxSettings()
    """Sandboxes."""

    agent: AnyAgentSettings = BashAgentSettings()
    """Agent."""

    engine: AnyEngineSettings = LocalEngineSettings()
    """Engine that samples replies."""

    sampling: SamplingSettings = SamplingSettings()
    """Sampling parameters."""

    rollout: RolloutSettings = RolloutSettings()
    """Collection of rollouts."""

    grading: GradingSettings = GradingSettings()
    """Grading of patches."""

    judge: JudgeSettings = JudgeSettings()
    """Model that scores single turns."""

    progress: ProgressSettings = ProgressSettings()
    """Scores of single turns by the hidden tests."""

    groups_per_step: int = Field(default=8, ge=1)
    """Number of groups per training step; each group has one task."""

    train: TrainSettings = TrainSettings()
    """Reinforcement learning."""

    placement: Annotated[PlacementSettings, Mark.SAME_RESULTS] = PlacementSettings()
    """Devices of the trainer, the engine, the judge and the teacher."""

    metrics: Annotated[MetricsSettings, Mark.SAME_RESULTS] = MetricsSettings()
    """Experiment trackers."""

    simulate: Annotated[SimulateSettings, Mark.SAME_RESULTS] = SimulateSettings()
    """Durations that `hone plan --simulate` assumes."""

    demonstrations: DemonstrationSettings = DemonstrationSettings()
    """Demonstrations for supervised training."""

    sft: SftSettings = SftSettings()
    """Supervised training."""

    evaluate: EvaluateSettings = EvaluateSettings()
    """Evaluation of a fixed policy."""

    _variables: dict[str, str] = PrivateAttr(default_factory=dict[str, str])
    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def variables(self) -> Mapping[str, str]:
        """Setting -> the environment variable that gave its value."""
        return self._variables

    @property
    def recipes(self) -> tuple[str, ...]:
        """The files that gave the values: what the recipe extends, later ones above, then the recipe."""
        return self._origin.recipes

    @property
    def engine_copies_weights(self) -> bool:
        """Whether a local engine has weights of its own, even beside a trainer in its process.

        It has them where rollouts go on during a training step, which need weights that do not change under
        them, and where it samples in a precision of its own.
        """
        if not isinstance(self.engine, LocalEngineSettings):
            return False
        goes_on = self.rollout.max_staleness > 0 and self.train.learner == "in_process"
        return goes_on or self.engine.dtype is not None

    def with_variables(self, variables: Mapping[str, str]) -> RunSettings:
        """Return the settings with another record of the variables that gave their values."""
        copy = self.model_copy()
        copy._variables = dict(variables)
        return copy

    def with_recipes(self, recipes: Iterable[str]) -> RunSettings:
        """Return the settings with another record of the recipes that gave their values."""
        copy = self.model_copy()
        copy._origin = Origin(recipes=tuple(recipes))
        return copy

    @model_validator(mode="after")
    def _judge_is_not_the_policy(self) -> RunSettings:
        shared = set(self.judge.engine.addresses) & set(self.engine.addresses)
        if self.judge.enabled and shared:
            raise ValueError(
                f"judge.engine.urls: {', '.join(sorted(shared))} serves the policy, whose weights change: "
                "set other servers for the judge"
            )
        return self

    @model_validator(mode="after")
    def _teacher_scores_the_policy(self) -> RunSettings:
        distill = self.train.distill
        if not distill.enabled:
            return self
        shared = set(distill.engine.addresses) & set(self.engine.addresses)
        if shared:
            raise ValueError(
                f"train.distill.engine.urls: {', '.join(sorted(shared))} serves the policy, whose weights "
                "change: set other servers for the teacher"
            )
        if distill.engine.context_tokens <= self.engine.context_tokens:
            raise ValueError(
                f"train.distill.engine.context_tokens is {distill.engine.context_tokens}, and the policy's "
                f"conversations have up to {self.engine.context_tokens} tokens: set it above that"
            )
        if self.rollout.replace_constant_groups and not distill.outcome_reward:
            raise ValueError(
                "rollout.replace_constant_groups drops groups of equal rewards, from which the teacher's "
                "advantages train as well: remove it, or set train.distill.outcome_reward = true"
            )
        return self

    @model_validator(mode="after")
    def _adapters_are_published(self) -> RunSettings:
        nccl = isinstance(self.engine, ServerEngineSettings) and self.engine.weight_sync == "nccl"
        if self.train.lora is not None and nccl:
            raise ValueError(
                'engine.weight_sync = "nccl" does not merge the adapters of train.lora: set '
                'engine.weight_sync = "disk"'
            )
        return self

    @model_validator(mode="after")
    def _service_samples_what_it_trains(self) -> RunSettings:
        if self.train.learner != "tinker":
            return self
        if not isinstance(self.engine, TinkerEngineSettings):
            raise ValueError(
                f'train.learner = "tinker" trains weights at a service, and engine.kind = '
                f'"{self.engine.kind}" cannot sample from them: set engine.kind = "tinker"'
            )
        if self.sampling.temperature != 1:
            raise ValueError(
                f"sampling.temperature is {self.sampling.temperature:g}, and a Tinker service computes "
                "log-probabilities at temperature 1: set it to 1"
            )
        if self.rollout.max_staleness:
            raise ValueError(
                f"rollout.max_staleness is {self.rollout.max_staleness}, but a Tinker service may change the "
                "weights of a sampler while it trains: set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _learner_elsewhere_honours_the_settings(self) -> RunSettings:
        if problem := remote_learner_problem(self.train):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _staleness_fits_the_run(self) -> RunSettings:
        staleness, steps = self.rollout.max_staleness, self.train.steps
        if staleness >= steps:
            raise ValueError(
                f"rollout.max_staleness is {staleness}, but in {steps} steps (train.steps) a rollout is at "
                f"most {steps - 1} steps old when it trains: set it below train.steps"
            )
        return self

    @model_validator(mode="after")
    def _sandboxes_can_be_parked(self) -> RunSettings:
        provider, agent = self.sandbox.provider, self.agent.kind
        if self.rollout.park_after_s is None:
            return self
        if provider != "namespaces":
            raise ValueError(
                f'rollout.park_after_s needs snapshots of sandboxes, which sandbox.provider = "{provider}" '
                'does not have: remove it, or set sandbox.provider = "namespaces"'
            )
        if agent != "bash":
            raise ValueError(
                f'rollout.park_after_s does not work with agent.kind = "{agent}", of which a process stays '
                'in the sandbox, or a clock goes on, during a reply: remove it, or set agent.kind = "bash"'
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
                f"turn rewards have no effect with train.algorithm ({algorithm.named}): set "
                "train.algorithm.name = 'step_wise' or train.algorithm.reward = 'final', or the coefficients "
                "of judge and progress to 0 to record scores only"
            )
        return self

    def beside_policy(self, command: Command) -> dict[str, RunSettings]:
        """Return name -> settings of each further model that a command uses, as if it were the policy's."""
        if command not in ("train", "quickstart"):
            return {}
        judge = {"judge": self.judge_as_policy()} if self.judge.enabled else {}
        return judge | ({"teacher": self.teacher_as_policy()} if self.train.distill.enabled else {})

    def teacher_as_policy(self) -> RunSettings:
        """Return the settings with the teacher's model and engine instead of the policy's."""
        return self.model_copy(
            update={
                "model": self.train.distill.model,
                "makes_model": False,
                "engine": self.train.distill.engine,
                "run_dir": self.run_dir / "teacher",
                "placement": PlacementSettings(engine=self.placement.teacher),
            }
        )

    def judge_as_policy(self) -> RunSettings:
        """Return the settings with the judge's model, engine and sampling instead of the policy's.

        A judge without its own model uses the model that training starts from.
        """
        judge = self.judge
        return self.model_copy(
            update={
                "model": judge.model or self.model,
                "makes_model": self.makes_model and judge.model is None,
                "engine": judge.engine,
                "sampling": SamplingSettings(temperature=judge.temperature, max_tokens=judge.max_tokens),
                "run_dir": self.run_dir / "judge",
                "placement": PlacementSettings(engine=self.placement.judge),
            }
        )
