"""Trains again on a run's stored rollouts (`hone replay`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hone.config import RunSettings
from hone.launch.policy import load_policy
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim
from hone.launch.train import TrainReport, make_trainer
from hone.rollout.ledger import Ledger
from hone.rollout.lock import RunLock
from hone.rollout.rewards import is_masked
from hone.rollout.step_rewards import weigh
from hone.rollout.store import Store
from hone.train import loop
from hone.train.metrics import MetricsWriter


def replay(run: Path, settings: RunSettings, reporter: Reporter) -> TrainReport:
    """Train `settings.model` on the batches of `run`, in order, into the new `settings.run_dir`.

    Raises LedgerError if `run` is no run directory, StoreError for a damaged rollout.
    """
    claim(settings)
    policy = load_policy(settings)
    last: Mapping[str, float] = {}
    with (
        Ledger.read(run) as ledger,
        RunLock(settings.run_dir),
        MetricsWriter(settings.run_dir) as metrics,
        reporter.stage("training again", ledger.balance().steps) as stage,
    ):

        def on_step(step: int, measured: Mapping[str, float]) -> None:
            nonlocal last
            last = measured
            stage.advance()
            stage.set_status(f"loss {measured['loss']:.3f}")

        stored = loop.recorded_steps(ledger, Store(run / "rollouts"))
        checkpoint = loop.replay(
            ([weigh(rollout, settings.judge, settings.progress) for rollout in step] for step in stored),
            settings.train,
            trainer=make_trainer(policy, settings),
            tokenizer=policy.tokenizer,
            run_dir=settings.run_dir,
            metrics=metrics,
            is_masked=lambda trajectory: is_masked(trajectory, settings.rollout),
            on_step=on_step,
        )
        steps = ledger.balance().steps
    return TrainReport(
        run_dir=settings.run_dir, steps=steps, checkpoint=checkpoint, reward=last.get("reward")
    )
