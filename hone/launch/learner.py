"""Opens the learner of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hone.launch.policy import Policy
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner
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
) -> Iterator[Learner]:
    """Open a learner of the policy's model, with a reference model if the objective has a KL term; blocks.

    Raises PolicyError, TrainError.
    """
    reference = None
    if objective.uses_reference:
        reference = policy.load_model()
    learner = InProcessLearner(
        policy.model,
        objective=objective,
        optimizer=optimizer,
        passes=passes,
        settings=settings,
        reference=reference,
    )
    try:
        yield learner
    finally:
        learner.close()
