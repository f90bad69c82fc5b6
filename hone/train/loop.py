"""The main loop of reinforcement learning.

    collect -> credit -> samples -> train -> new version -> checkpoint -> metrics -> ledger

After `commit_step(k)` the run stands after step k, whatever happens next; `resume` mends what a crash between
the checkpoint and the commit left apart. Step k trains on tokens of weight version k and makes version k + 1.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.rollout.ledger import MASKED, TRAINED, Disposal, Disposition, Ledger, dropped
from hone.rollout.rewards import solved
from hone.rollout.step_rewards import summary
from hone.train import checkpoint
from hone.train.algorithms import Advantages, compute_advantages
from hone.train.checkpoint import Tokenizer, TrainState
from hone.train.errors import StaleSample
from hone.train.metrics import MetricsWriter
from hone.train.samples import build_samples
from hone.train.settings import TrainSettings
from hone.train.trainer import Trainer
from hone.types import Sample, Trajectory
from hone.utils.concurrency import run_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """Everything a run needs.

    `collect(step)` answers every rollout of the step that was not dropped. Once `publish(version)` returns,
    the engine samples from the trainer's present weights and marks what it samples with `version`.
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
    on_step: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None


async def train(run: TrainRun) -> None:
    """Train to `settings.steps`, from the last complete checkpoint where there is one.

    Raises TrainError (StaleSample, NonFinite, CheckpointError) and what `collect` and the ledger raise; the
    run directory is then as good as after a crash: the same call goes on.
    """
    for step in range(await resume(run), run.settings.steps):
        trajectories = await run.collect(step)
        credit, samples = to_samples(trajectories, run.settings, run.is_masked)
        require_on_policy(samples, step)
        metrics = describe(trajectories, credit, samples) | await train_step(run.trainer, samples)
        await run.publish(step + 1)
        disposals = dispose(credit, samples)
        if (step + 1) % run.settings.checkpoint.every == 0 or step + 1 == run.settings.steps:
            await run_in_thread(save, run, step, disposals)
        run.metrics.write(step, metrics)  # before the commit: a crash repeats a line rather than lose one
        run.ledger.commit_step(step, disposals)
        run.on_step(step, metrics)


async def resume(run: TrainRun) -> int:
    """Restore the last checkpoint, bring the ledger and the engine in line with it; returns the next step."""
    path = checkpoint.latest(checkpoints(run.run_dir))
    done = -1
    if path is not None:
        progress = await run_in_thread(checkpoint.restore, path, run.trainer)
        done = progress.step
        if _committed(run.ledger) < done:
            run.ledger.commit_step(done, {i: _disposal(d) for i, d in progress.rollouts.items()})
    if _committed(run.ledger) > done:
        run.ledger.rollback(done)
    await run.publish(done + 1)
    return done + 1


def to_samples(
    trajectories: Sequence[Trajectory], settings: TrainSettings, is_masked: Callable[[Trajectory], bool]
) -> tuple[Advantages, list[Sample]]:
    """What a batch teaches: the credit of its rollouts, and the samples of those that are trained.

    The order of arrival makes no difference.
    """
    ordered = sorted(trajectories, key=lambda t: t.rollout_id)
    masked = [t.rollout_id for t in ordered if is_masked(t)]
    credit = compute_advantages(ordered, settings.algorithm, masked=masked)
    return credit, build_samples(ordered, credit)


async def train_step(trainer: Trainer, samples: Sequence[Sample]) -> dict[str, float]:
    """`trainer.step` off the event loop; cancelling it stops the thread after its present forward pass."""
    try:
        return await asyncio.to_thread(trainer.step, samples)
    except asyncio.CancelledError:
        trainer.cancel()
        raise


def require_on_policy(samples: Sequence[Sample], step: int) -> None:
    """Raise StaleSample unless weight version `step` sampled every trained token."""
    for sample in samples:
        versions = sample.version[sample.weight > 0]
        oldest, newest = int(versions.min()), int(versions.max())
        if (oldest, newest) != (step, step):
            raise StaleSample(
                f"rollout {sample.rollout_id} holds tokens of weight versions {oldest} to {newest} at step "
                f"{step}, and training is on-policy: find out why the engine did not take the new weights"
            )


def dispose(credit: Advantages, samples: Sequence[Sample]) -> dict[str, Disposal]:
    """What the ledger is told; infrastructure faults it knows already."""
    with_tokens = {sample.rollout_id for sample in samples}
    disposals = {i: TRAINED if i in with_tokens else dropped("no_tokens") for i in credit.advantages}
    return disposals | dict.fromkeys(credit.masked, MASKED)


def describe(
    trajectories: Sequence[Trajectory], credit: Advantages, samples: Sequence[Sample]
) -> dict[str, float]:
    """Metrics of a batch before it is trained on; rates are over the rollouts in the baseline."""
    excluded = set(credit.excluded)
    counted = [t for t in trajectories if t.rollout_id not in excluded]
    outcomes = Counter(str(t.outcome) for t in trajectories)
    count = max(1, len(counted))
    return {
        "reward": sum(t.reward or 0.0 for t in counted) / count,
        "resolve_rate": sum(solved(t.outcome, t.verdict) for t in counted) / count,
        "turns": sum(len(t.turns) for t in counted) / count,
        "rollouts": len(trajectories),
        "masked": len(credit.masked),
        "excluded": len(credit.excluded),
        "groups": credit.groups,
        "zero_variance_groups": len(credit.zero_variance_groups),
        "samples": len(samples),
        **{f"outcome/{name}": number for name, number in outcomes.items()},
        **summary(counted),
    }


def save(run: TrainRun, step: int, disposals: Mapping[str, Disposal]) -> Path:
    rollouts = {i: [d.disposition.value, d.reason] for i, d in disposals.items()}
    return checkpoint.save(
        checkpoints(run.run_dir),
        TrainState(step=step, rollouts=rollouts),
        trainer=run.trainer,
        tokenizer=run.tokenizer,
        keep=run.settings.checkpoint.keep,
    )


def checkpoints(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def _committed(ledger: Ledger) -> int:
    return -1 if ledger.last_step is None else ledger.last_step


def _disposal(saved: Sequence[str | None]) -> Disposal:
    disposition, reason = saved
    return Disposal(disposition=Disposition(disposition), reason=reason)
