"""Train offline on the rollouts of a finished run, with another algorithm, loss or mask.

The settings of the run itself give the same weights. With other settings, other weights sampled the tokens;
the ratio against the engine's log-probabilities corrects for that, and `logp_gap_max` and
`ratio_mean_deviation` report by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.train import checkpoint
from hone.train.checkpoint import Tokenizer, TrainState
from hone.train.errors import TrainError
from hone.train.loop import describe, to_samples
from hone.train.metrics import MetricsWriter
from hone.train.settings import TrainSettings
from hone.train.trainer import Trainer
from hone.types import Trajectory


def recorded_steps(ledger: Ledger, store: Store) -> Iterator[list[Trajectory]]:
    """Yield the rollouts that each committed step trained on or masked, in order of dispatch.

    Raises StoreError when a rollout cannot be read.
    """
    for step in range(0 if ledger.last_step is None else ledger.last_step + 1):
        entries = [entry for entry in ledger.entries() if entry.trained_step == step]
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
    """Train on each batch in turn; return the last checkpoint. Raises TrainError without a batch."""
    last = -1
    for step, trajectories in enumerate(steps):
        advantages, samples = to_samples(trajectories, settings, is_masked)
        report = describe(trajectories, advantages, samples) | trainer.step(samples)
        metrics.write(step, report)
        on_step(step, report)
        last = step
    if last < 0:
        raise TrainError("the run has no committed step to replay: train at least one step first")
    return checkpoint.save(
        run_dir / "checkpoints",
        TrainState(step=last),
        trainer=trainer,
        tokenizer=tokenizer,
        keep=settings.checkpoint.keep,
    )
