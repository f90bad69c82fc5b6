"""Reinforcement learning in one process (`hone train`), and again on stored rollouts (`hone replay`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hone.config import ConfigError, RunSettings, fingerprint
from hone.grading.assess import check_gradeable
from hone.launch.learner import open_learner
from hone.launch.metrics import open_metrics
from hone.launch.placement import place, place_trainer, while_training
from hone.launch.policy import (
    Policy,
    chats,
    load_policy,
    open_engine,
    pin_policy,
    require_exact_sampling,
    require_tokens,
)
from hone.launch.reporter import Reporter, Stage
from hone.launch.rundir import claim, claimed, require_own
from hone.launch.runtime import Runtime, open_context, open_runtime, open_scorers
from hone.launch.sft import make_start_model, split_demonstrated
from hone.launch.tasks import require_validation_tasks
from hone.launch.teacher import find_teacher, open_teacher
from hone.launch.validate import make_validator
from hone.launch.weights import publisher
from hone.policy.settings import ServerEngineSettings, TinkerEngineSettings
from hone.rollout.attempts import EpisodeRollouts, Rollouts
from hone.rollout.equal_rewards import describe_equal_rewards
from hone.rollout.groups import GroupCollector, RolloutProgress
from hone.rollout.ledger import Ledger
from hone.rollout.lock import RunLock
from hone.rollout.order import TaskOrder
from hone.rollout.pipeline import Pipeline
from hone.rollout.rewards import is_masked, weigh
from hone.rollout.store import Store
from hone.rollout.window import Window
from hone.tasks.sources import check_proven, load_splits
from hone.train import checkpoint, loop
from hone.train.idle import require_trained
from hone.train.loss import policy_objective
from hone.train.metrics import MetricsWriter
from hone.train.settings import EXPERTS, LoraSettings
from hone.train.trainer import Trainer, rl_trainer
from hone.types import Task
from hone.utils.concurrency import run_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    run_dir: Path
    steps: int  # completed in total
    checkpoint: Path  # the last one, in the format of transformers
    reward: float | None  # mean of the last step; None when nothing was left to do
    steps_without_training: str | None = None  # how many, and why; None if every step trained
    tasks_with_equal_rewards: str | None = None  # in each of their groups; None if there are none


def train(settings: RunSettings, reporter: Reporter) -> TrainReport:
    """Train as `open_and_train`; blocks."""
    return asyncio.run(open_and_train(settings, reporter))


async def open_and_train(settings: RunSettings, reporter: Reporter) -> TrainReport:
    """Train `settings.model`, or a new start model, on the training tasks; continue an earlier call.

    Raises ConfigError, PolicyError, ProviderUnavailable, TaskError, RolloutError, TrainError (also when no
    step trained anything), LedgerError.
    """
    makes_model = settings.makes_model and settings.model is None
    ready = claimed(settings, "train")
    require_own(ready)
    async with open_runtime(settings) as runtime:
        splits = load_splits(settings.tasks)
        check_gradeable((*splits.train, *splits.validation))
        tasks: Sequence[Task] = splits.train
        if makes_model:
            demonstrated, tasks = split_demonstrated(settings, tasks)
            claim(ready)
            await make_start_model(settings, runtime, reporter, demonstrated)
        return await run_training(ready, runtime, reporter, tasks=tasks, validation=splits.validation)


async def run_training(
    settings: RunSettings,
    runtime: Runtime,
    reporter: Reporter,
    *,
    tasks: Sequence[Task],
    validation: Sequence[Task] = (),
) -> TrainReport:
    """Train on `tasks`, and validate on `validation`; claim the run directory once everything is open."""
    _require_trainable(settings)
    _require_tasks(settings, tasks, validation)
    recipe, settings = settings, await asyncio.to_thread(place, settings, "train")
    _require_own_devices(settings)
    policy, teacher = await asyncio.to_thread(_find_models, settings)
    with (
        ExitStack() as stack,
        Ledger.open(settings.run_dir) as ledger,
        open_metrics(settings, reporter) as metrics,
        reporter.stage("training", settings.train.steps) as stage,
    ):
        trainer = await run_in_thread(stack.enter_context, open_trainer(policy, settings))
        display = TrainingDisplay(stage)
        async with (
            open_engine(policy, settings, stage.set_status) as engine,
            open_teacher(settings, teacher, stage.set_status) as distill,
            open_scorers(settings, stage.set_status) as scorers,
            open_context(
                runtime, settings, settings.agent, chats(policy, engine, settings), scorers
            ) as context,
        ):
            claim(recipe)  # without the devices of this machine
            ledger.bind(fingerprint(settings))
            store = Store(settings.run_dir / "rollouts")
            rollouts = EpisodeRollouts(context, store, groups_per_step=settings.groups_per_step)
            pipeline = make_pipeline(settings, rollouts, ledger, tasks, display.on_rollout)
            await loop.train(
                loop.TrainRun(
                    run_dir=settings.run_dir,
                    settings=settings.train,
                    trainer=trainer,
                    tokenizer=policy.tokenizer,
                    publish=publisher(engine, policy, trainer.learner, settings),
                    ledger=ledger,
                    metrics=metrics,
                    collect=pipeline.collect_trajectories,
                    collecting=pipeline.running,
                    max_staleness=settings.rollout.max_staleness,
                    busy=context.busy,
                    metrics_of_rollouts=pipeline.metrics,
                    distill=distill,
                    is_masked=lambda trajectory: is_masked(trajectory, settings.rollout),
                    on_step=display.on_step,
                    while_training=lambda: while_training(engine, settings),
                    warn=reporter.note,
                    validator=make_validator(
                        settings, runtime, context, reporter, validation, metrics, display.on_validation
                    ),
                )
            )
        return _report(settings.run_dir, ledger, display)


def _find_models(settings: RunSettings) -> tuple[Policy, Policy | None]:
    """Return the policy, pinned to its commit, and its teacher, if it has one; blocks."""
    pin_policy(settings)
    policy = load_policy(settings)
    return policy, find_teacher(settings, policy)


def _report(run_dir: Path, ledger: Ledger, display: TrainingDisplay) -> TrainReport:
    """Raises TrainError if no step trained anything."""
    path = checkpoint.latest(loop.checkpoints(run_dir))
    assert path is not None, "a finished training has written its last step"
    return TrainReport(
        run_dir=run_dir,
        steps=ledger.balance().steps,
        checkpoint=path,
        reward=display.last.get("reward"),
        steps_without_training=require_trained(run_dir),
        tasks_with_equal_rewards=describe_equal_rewards(ledger.entries()),
    )


def replay(run: Path, settings: RunSettings, reporter: Reporter) -> TrainReport:
    """Train `settings.model` on the first `train.steps` batches of `run` into the new `settings.run_dir`.

    Raises LedgerError if `run` is not a run directory, StoreError for a damaged rollout, ConfigError with a
    teacher.
    """
    if settings.train.distill.enabled:
        raise ConfigError(
            "a replay opens no engine, and train.distill needs its teacher's: replay a run without one, or "
            "repeat this one with `hone train` and another run_dir"
        )
    require_own(settings)
    policy = load_policy(place_trainer(settings))
    with (
        Ledger.read(run) as ledger,
        RunLock(settings.run_dir),
        MetricsWriter(settings.run_dir) as metrics,
        open_trainer(policy, settings) as trainer,
        reporter.stage("training again", steps := min(ledger.balance().steps, settings.train.steps)) as stage,
    ):
        claim(settings)
        display = TrainingDisplay(stage)
        stored = islice(loop.recorded_steps(ledger, Store(run / "rollouts")), steps)
        path = loop.replay(
            ([weigh(rollout, settings.judge, settings.progress) for rollout in step] for step in stored),
            settings.train,
            trainer=trainer,
            tokenizer=policy.tokenizer,
            run_dir=settings.run_dir,
            metrics=metrics,
            is_masked=lambda trajectory: is_masked(trajectory, settings.rollout),
            on_step=display.on_step,
        )
    return TrainReport(
        run_dir=settings.run_dir,
        steps=steps,
        checkpoint=path,
        reward=display.last.get("reward"),
        steps_without_training=require_trained(settings.run_dir),
    )


@contextmanager
def open_trainer(policy: Policy, settings: RunSettings) -> Iterator[Trainer]:
    """Open a trainer of the policy's model; blocks. Raises PolicyError, TrainError."""
    objective = policy_objective(settings.train.loss, settings.sampling.temperature, settings.train.algorithm)
    if settings.train.learner == "tinker":
        from hone.launch.tinker import open_service_learner  # only where it is used

        with open_service_learner(settings, policy.settings, policy.tokenizer, objective) as learner:
            yield rl_trainer(learner, objective, settings.train)
        return
    with open_learner(
        policy,
        settings.train,
        objective=objective,
        optimizer=settings.train.optimizer,
        passes=settings.train.batch,
        run_dir=settings.run_dir,
    ) as learner:
        yield rl_trainer(learner, objective, settings.train)


class TrainingDisplay:
    """Shows the progress of a training."""

    def __init__(self, stage: Stage) -> None:
        self.last: Mapping[str, float] = {}  # metrics of the last step
        self._stage = stage
        self._reward = ""
        self._validated = ""

    def on_rollout(self, progress: RolloutProgress) -> None:
        self._stage.set_status(f"{self._reward}{self._validated}rollouts {progress.ended}/{progress.planned}")

    def on_validation(self, version: int, metrics: Mapping[str, float]) -> None:
        self._validated = f"validated {100 * metrics['resolve_rate']:.0f} % after step {version}  "
        self._stage.set_status(f"{self._reward}{self._validated}".rstrip())

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last = metrics
        self._reward = f"reward {metrics['reward']:+.2f}  resolved {100 * metrics['resolve_rate']:.0f} %  "
        if "distill/kl" in metrics:
            self._reward += f"KL to the teacher {metrics['distill/kl']:.3f}  "
        self._stage.set_status(f"{self._reward}{self._validated}".rstrip())
        self._stage.set_done(step + 1)


def make_pipeline(
    settings: RunSettings,
    rollouts: Rollouts,
    ledger: Ledger,
    tasks: Sequence[Task],
    progress: Callable[[RolloutProgress], None] = lambda _: None,
) -> Pipeline:
    """Return the pipeline of a run that trains on `tasks`."""
    order = TaskOrder(
        tasks,
        seed=settings.seed,
        groups_per_step=settings.groups_per_step,
        replacements=settings.rollout.replace_constant_groups,
    )
    groups = GroupCollector(
        rollouts,
        ledger,
        order,
        settings.rollout,
        seed=settings.seed,
        groups_per_step=settings.groups_per_step,
        progress=progress,
    )
    window = Window(
        groups_per_step=settings.groups_per_step,
        max_staleness=settings.rollout.max_staleness,
        steps=settings.train.steps,
    )
    return Pipeline(groups, window, group_size=settings.rollout.group_size)


def _require_tasks(settings: RunSettings, tasks: Sequence[Task], validation: Sequence[Task]) -> None:
    """Raise TaskError for an unproven task, ConfigError for a missing set."""
    check_proven(settings.tasks, tasks)
    if not tasks:
        raise ConfigError("the training set is empty: set tasks.train, or a tasks.source with tasks")
    require_validation_tasks(settings, validation)


def _require_trainable(settings: RunSettings) -> None:
    """Raise ConfigError unless the engine's replies can be trained on, by this learner."""
    require_tokens(settings)
    require_exact_sampling(settings)
    if isinstance(settings.engine, ServerEngineSettings):
        _require_adapters_fit(settings.engine, settings.train.lora)
    if isinstance(settings.engine, TinkerEngineSettings) and settings.train.learner != "tinker":
        raise ConfigError(
            f'engine.kind = "tinker" samples from weights at a service, which train.learner = '
            f'"{settings.train.learner}" does not train: set train.learner = "tinker", or another engine'
        )


def _require_own_devices(settings: RunSettings) -> None:
    """Raise ConfigError if the engine would have to sleep while rollouts go on."""
    if settings.rollout.max_staleness and settings.placement.colocate:
        raise ConfigError(
            f"rollout.max_staleness = {settings.rollout.max_staleness} lets the engine work while the "
            "trainer does, and they share GPUs: set placement.trainer and placement.engine to others, "
            "or rollout.max_staleness = 0"
        )


def _require_adapters_fit(engine: ServerEngineSettings, lora: LoraSettings | None) -> None:
    """Raise ConfigError unless the engine servers can be sent what is trained."""
    if lora is None:
        if engine.weight_sync == "adapter":
            raise ConfigError(
                'engine.weight_sync = "adapter" sends low-rank adapters, and this run trains all weights: '
                'set train.lora, or engine.weight_sync = "disk"'
            )
        return
    if engine.weight_sync == "adapter" and EXPERTS in lora.targets:
        raise ConfigError(
            f'engine.weight_sync = "adapter" does not send adapters of {EXPERTS}: remove {EXPERTS} from '
            'train.lora.targets, or set engine.weight_sync to "disk"'
        )
    if engine.weight_sync == "adapter" and engine.managed and lora.rank > engine.adapter_rank:
        raise ConfigError(
            f"train.lora.rank is {lora.rank}, but the engine servers load adapters up to rank "
            f"{engine.adapter_rank}: set engine.adapter_rank to {lora.rank} or more"
        )
