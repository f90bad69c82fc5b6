"""Train again, offline, on the rollouts of a finished run, with another algorithm, loss or mask.

With the settings of the run itself the weights come out the same. With others, the ratio against the engine's
log-probabilities corrects for the tokens having been sampled by other weights; `logp_gap_max` and
`ratio_mean_deviation` say how far it has to reach.
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
    """The rollouts that each committed step of a run trained on or masked, in the order of dispatch.

    Raises StoreError for a rollout that cannot be read.
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
    """Train on each batch in turn and return the checkpoint of the last. Raises TrainError without any."""
    last = -1
    for step, trajectories in enumerate(steps):
        credit, samples = to_samples(trajectories, settings, is_masked)
        report = describe(trajectories, credit, samples) | trainer.step(samples)
        metrics.write(step, report)
        on_step(step, report)
        last = step
    if last < 0:
        raise TrainError("the run holds no committed step to train on again")
    return checkpoint.save(
        run_dir / "checkpoints",
        TrainState(step=last),
        trainer=trainer,
        tokenizer=tokenizer,
        keep=settings.checkpoint.keep,
    )
