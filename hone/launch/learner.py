"""Opens the learner of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hone.launch.policy import Policy
from hone.train.errors import TrainError
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner, LearnerSpec
from hone.train.loss import Objective
from hone.train.settings import LearnerSettings, OptimizerSettings, PassSettings


@contextmanager
def open_learner(
    policy: Policy,
    settings: LearnerSettings,
    *,
    objective: Objective,
    optimizer: OptimizerSettings,
    passes: PassSettings,
    run_dir: Path,
) -> Iterator[Learner]:
    """Open a learner of the policy's model, with a reference model if the objective has a KL term; blocks.

    With adapters the reference is the policy's model without them. Ranks write their logs into
    `run_dir/ranks`. Raises PolicyError, TrainError.
    """
    learner: Learner
    if settings.learner == "tinker":
        raise TrainError(
            'train.learner = "tinker" is for reinforcement learning only: set train.learner = "in_process" '
            "for supervised training, and start the service with its model"
        )
    if settings.learner == "ranks":
        from hone.train.ranks.learner import RanksLearner  # imports torch's elastic launcher

        spec = LearnerSpec(
            model=policy.settings.path.resolve(),
            dtype=policy.settings.dtype,
            objective=objective,
            optimizer=optimizer,
            passes=passes,
            settings=settings,
        )
        learner = RanksLearner(spec, logs=run_dir / "ranks", devices=policy.gpus)
    else:
        needs_reference = objective.uses_reference and settings.lora is None
        learner = InProcessLearner(
            policy.model,
            objective=objective,
            optimizer=optimizer,
            passes=passes,
            settings=settings,
            reference=policy.load_model() if needs_reference else None,
        )
    try:
        yield learner
    finally:
        learner.close()
