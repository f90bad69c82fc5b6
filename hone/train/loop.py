"""The main loop of reinforcement learning.

    collect -> advantages -> samples (-> a teacher's scores) -> train -> new version -> metrics -> checkpoint
        -> ledger

Rollouts go on in the background while a step trains, as far as `max_staleness` allows. The next step begins
while the checkpoint is written, and the ledger commits the step once it is complete. After `commit_step(k)`,
step k is durable; `resume` reconciles checkpoint and ledger after a crash between their writes. Step k trains
on tokens of weight versions k - max_staleness to k and makes version k + 1.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from hone.rollout.busy import BusyShares
from hone.rollout.ledger import MASKED, TRAINED, Disposal, Disposition, Ledger, dropped
from hone.rollout.rewards import solved, summary
from hone.rollout.store import Store
from hone.train import checkpoint
from hone.train.algorithms import Advantages, compute_advantages
from hone.train.checkpoint import Tokenizer, TrainState
from hone.train.checkpoint_writer import CheckpointWriter
from hone.train.errors import RankError, StaleSample, TrainError
from hone.train.idle import check_idle, count_idle, idle_steps_before
from hone.train.metrics import MetricsWriter
from hone.train.restarts import Restarts
from hone.train.samples import build_samples
from hone.train.settings import TrainSettings
from hone.train.token_records import TokenRecorder
from hone.train.trainer import Trainer
from hone.train.validate import Validator
from hone.types import Sample, Trajectory
from hone.utils.concurrency import run_in_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """Components and settings of a run.

    `collect(step)`, inside of `collecting`, returns the rollouts that the step consumes. After
    `publish(version)` returns, the engine samples from the trainer's current weights and marks the tokens
    with `version`. `distill` returns the samples with a teacher's advantages, and metrics.
    """

    run_dir: Path
    settings: TrainSettings
    trainer: Trainer
    tokenizer: Tokenizer
    publish: Callable[[int], Awaitable[None]]
    ledger: Ledger
    metrics: MetricsWriter
    collect: Callable[[int], Awaitable[Sequence[Trajectory]]]
    is_masked: Callable[[Trajectory], bool]
    collecting: Callable[[int], AbstractAsyncContextManager[None]] = lambda step: (
        nullcontext()
    )  # from `step` on
    max_staleness: int = 0  # see `RolloutSettings`
    busy: BusyShares = field(default_factory=BusyShares)
    metrics_of_rollouts: Callable[[], Mapping[str, float]] = dict[str, float]  # read after each step
    on_step: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
    while_training: Callable[[], AbstractAsyncContextManager[None]] = nullcontext  # around each training step
    warn: Callable[[str], None] = log.warning
    validator: Validator | None = None
    distill: Callable[[Sequence[Sample]], Awaitable[tuple[list[Sample], dict[str, float]]]] | None = None


async def train(run: TrainRun) -> None:
    """Train to `settings.steps`, from the last complete checkpoint if there is one.

    After the death of a rank the run goes on from there, up to `settings.restarts` times.

    Raises TrainError (StaleSample, NonFinite, CheckpointError, RankError) and the errors of `collect` and the
    ledger. After an error or a crash, the same call resumes the run.
    """
    restarts = Restarts(run.trainer, run.settings.restarts, run.warn)
    while True:
        try:
            return await _train(run)
        except RankError as error:
            async with run.while_training():  # new ranks need the memory of an engine on their GPUs
                await run_in_thread(restarts.after, error)


async def _train(run: TrainRun) -> None:
    start = await resume(run)
    idle = idle_steps_before(run.run_dir, start)
    directory = checkpoints(run.run_dir)
    async with (
        CheckpointWriter(directory, run.trainer, run.tokenizer, run.settings.checkpoint) as writer,
        run.collecting(start),
    ):
        await validate(run, writer, start)
        for step in range(start, run.settings.steps):
            waited = time.monotonic()
            trajectories = await run.collect(step)
            waited = time.monotonic() - waited
            advantages, samples = to_samples(trajectories, run.settings, run.is_masked)
            metrics = describe(trajectories, advantages, samples) | staleness(samples, step)
            require_fresh(samples, step, run.max_staleness)
            if run.distill is not None:
                samples, scored = await run.distill(samples)
                metrics |= scored
            recorder = TokenRecorder(samples)
            async with run.while_training():
                with run.busy.trainer.use():
                    metrics |= await train_step(run.trainer, samples, step, recorder)
            await run_in_thread(recorder.write, run.run_dir, step)
            metrics |= {"wait_s": waited, **run.busy.shares(), **run.metrics_of_rollouts()}
            metrics |= count_idle(metrics, idle)
            idle = int(metrics["idle_steps"])
            await run.publish(step + 1)
            run.metrics.write(step, metrics)  # before the commit: a crash may repeat a line but loses none
            await finish_step(run, writer, step, dispose(advantages, samples))
            run.on_step(step, metrics)
            await validate(run, writer, step + 1)
            if warning := check_idle(metrics, step, run.settings.max_idle_steps):
                run.warn(warning)


async def finish_step(
    run: TrainRun, writer: CheckpointWriter, step: int, disposals: Mapping[str, Disposal]
) -> None:
    """Commit a step; one that ends with a checkpoint is committed by `writer` once that is complete.

    So a crash during the write repeats the step and re-uses the finished rollouts of this step and the next.
    Returns after the state was copied.
    """
    await writer.wait_async()  # steps are committed in order
    if not needs_checkpoint(run, step):
        run.ledger.commit_step(step, disposals)
        return
    state = TrainState(step=step, rollouts={i: [d.disposition.value, d.reason] for i, d in disposals.items()})
    protect = () if run.validator is None else run.validator.protected(checkpoints(run.run_dir))
    await run_in_thread(
        writer.begin, state, protect=protect, then=lambda: run.ledger.commit_step(step, disposals)
    )


def needs_checkpoint(run: TrainRun, step: int) -> bool:
    """Return whether `step` ends with a checkpoint."""
    due = run.settings.checkpoint.is_due(step, run.settings.steps)
    return due or (run.validator is not None and run.validator.needs_checkpoint(step))


async def validate(run: TrainRun, writer: CheckpointWriter, version: int) -> None:
    """Validate `version` if it is due, and keep the best checkpoint."""
    if run.validator is not None:
        if run.validator.is_due(version):
            await run.validator.validate(version)
            await writer.wait_async()  # the checkpoint of `version` may be the best
        run.validator.link_best(checkpoints(run.run_dir))


async def resume(run: TrainRun) -> int:
    """Restore the last checkpoint, reconcile the ledger, update the engine; return the next step."""
    path = checkpoint.latest(checkpoints(run.run_dir))
    done = -1
    if path is not None:
        state = await run_in_thread(checkpoint.restore, path, run.trainer)
        done = state.step
        if _committed(run.ledger) < done:
            run.ledger.commit_step(done, {i: _disposal(d) for i, d in state.rollouts.items()})
    if _committed(run.ledger) > done:
        run.ledger.rollback(done)
    if run.validator is not None:
        run.validator.resume(done + 1)
    await run.publish(done + 1)
    return done + 1


def to_samples(
    trajectories: Sequence[Trajectory], settings: TrainSettings, is_masked: Callable[[Trajectory], bool]
) -> tuple[Advantages, list[Sample]]:
    """Return the advantages of a batch and the samples of its trained rollouts.

    The result does not depend on the order of `trajectories`.
    """
    ordered = sorted(trajectories, key=lambda t: t.rollout_id)
    masked = [t.rollout_id for t in ordered if is_masked(t)]
    advantages = compute_advantages(ordered, settings.algorithm, masked=masked)
    return advantages, build_samples(ordered, advantages)


async def train_step(
    trainer: Trainer, samples: Sequence[Sample], version: int, recorder: TokenRecorder
) -> dict[str, float]:
    """Run `trainer.step` in a thread; cancellation stops it after its current forward pass."""
    try:
        return await asyncio.to_thread(trainer.step, samples, version=version, recorder=recorder)
    except asyncio.CancelledError:
        trainer.cancel()
        raise


def require_fresh(samples: Sequence[Sample], step: int, max_staleness: int) -> None:
    """Raise StaleSample unless versions `step - max_staleness` to `step` sampled every trained token."""
    for sample in samples:
        oldest, newest = _versions(sample)
        if oldest < step - max_staleness or newest > step:
            allowed = (
                f"rollout.max_staleness is {max_staleness}" if max_staleness else "training is on-policy"
            )
            raise StaleSample(
                f"rollout {sample.rollout_id} holds tokens of weight versions {oldest} to {newest} at step "
                f"{step}, and {allowed}: check why the engine did not load the new weights"
            )


def staleness(samples: Sequence[Sample], step: int) -> dict[str, float]:
    """Return mean and maximum, over rollouts, of the steps between a rollout's oldest token and `step`."""
    oldest: dict[str, int] = {}
    for sample in samples:
        version = _versions(sample)[0]
        oldest[sample.rollout_id] = min(version, oldest.get(sample.rollout_id, version))
    ages = [step - version for version in oldest.values()] or [0]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": max(ages)}


def _versions(sample: Sample) -> tuple[int, int]:
    """Return the oldest and the newest weight version that sampled a trained token."""
    versions = sample.version[sample.weight > 0]
    return int(versions.min()), int(versions.max())


def dispose(advantages: Advantages, samples: Sequence[Sample]) -> dict[str, Disposal]:
    """Return the disposals for the ledger, which has dropped infrastructure faults already."""
    with_tokens = {sample.rollout_id for sample in samples}
    disposals = {i: TRAINED if i in with_tokens else dropped("no_tokens") for i in advantages.advantages}
    return disposals | dict.fromkeys(advantages.masked, MASKED)


def describe(
    trajectories: Sequence[Trajectory], advantages: Advantages, samples: Sequence[Sample]
) -> dict[str, float]:
    """Return metrics of a batch before training; rates are over the rollouts in the baseline."""
    excluded = set(advantages.excluded)
    counted = [t for t in trajectories if t.rollout_id not in excluded]
    outcomes = Counter(str(t.outcome) for t in trajectories)
    count = max(1, len(counted))
    stages = sorted({stage for t in counted for stage in t.timings})
    return {
        "reward": sum(t.reward or 0.0 for t in counted) / count,
        "resolve_rate": sum(solved(t.outcome, t.verdict) for t in counted) / count,
        "turns": sum(len(t.turns) for t in counted) / count,
        "rollouts": len(trajectories),
        "masked": len(advantages.masked),
        "excluded": len(advantages.excluded),
        "groups": advantages.groups,
        "zero_variance_groups": len(advantages.zero_variance_groups),
        "samples": len(samples),
        **{f"outcome/{name}": number for name, number in outcomes.items()},
        **{f"stage_s/{stage}": sum(t.timings.get(stage, 0.0) for t in counted) / count for stage in stages},
        **summary(counted),
    }


def recorded_steps(ledger: Ledger, store: Store) -> Iterator[list[Trajectory]]:
    """Yield the rollouts that each committed step trained on or masked, in order of dispatch.

    Raises StoreError when a rollout cannot be read.
    """
    for step in range(0 if ledger.last_step is None else ledger.last_step + 1):
        entries = ledger.entries(step)
        yield [store.load(entry.directory or "") for entry in entries]


def replay(
    steps: Iterable[Sequence[Trajectory]],
    settings: TrainSettings,
    *,
    trainer: Trainer,
    tokenizer: Tokenizer,
    run_dir: Path,
    metrics: MetricsWriter,
    is_masked: Callable[[Trajectory], bool],
    on_step: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
) -> Path:
    """Train offline on the batches of a finished run in turn; return the last checkpoint.

    Checkpoints are written and kept as in the run, by `settings.checkpoint`; the last step always has one.

    The settings of the run itself give the same weights, bit for bit on the same machine. Other passes (their
    size, `workers`, ranks) add the same numbers in another order: gradients then differ by rounding. Where a
    gradient is hardly more than that, the optimiser moves a weight by up to the learning rate in either
    direction, so weights differ by at most about twice the sum of the learning rates (by 5e-6 after 12 steps
    of a toy model at 1e-2, whose weights moved by up to 0.1). With another algorithm, loss or optimiser,
    other weights sampled the tokens; the ratio against the engine's log-probabilities corrects for that,
    and `logp_gap_max` and `ratio_mean_deviation` report by how much.

    Raises TrainError without a batch, CheckpointError.
    """
    last = written = -1
    with CheckpointWriter(checkpoints(run_dir), trainer, tokenizer, settings.checkpoint) as writer:
        for last, trajectories in enumerate(steps):
            advantages, samples = to_samples(trajectories, settings, is_masked)
            report = describe(trajectories, advantages, samples) | trainer.step(samples, version=last)
            metrics.write(last, report)
            on_step(last, report)
            if settings.checkpoint.is_due(last, settings.steps):
                writer.begin(TrainState(step=last))
                written = last
        if last < 0:
            raise TrainError("the run has no committed step to replay: train at least one step first")
        if written < last:  # the run was stopped before `settings.steps`
            writer.begin(TrainState(step=last))
        path = writer.wait()
    assert path is not None, "a checkpoint was begun"
    return path


def checkpoints(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def _committed(ledger: Ledger) -> int:
    return -1 if ledger.last_step is None else ledger.last_step


def _disposal(saved: Sequence[str | None]) -> Disposal:
    disposition, reason = saved
    return Disposal(disposition=Disposition(disposition), reason=reason)
