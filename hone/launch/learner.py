"""Opens the learner of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hone.launch.policy import Policy
from hone.train.errors import TrainError
from hone.train.in_process import InProcessLearner
from hone.train.learner import Learner, LearnerSpec
from hone.train.loss import Objective, PolicyObjective
from hone.train.settings import LearnerSettings, OptimizerSettings, PassSettings, TrainSettings
from hone.utils.files import write_file


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

        spec = _spec(policy, settings, objective, optimizer, passes)
        learner = RanksLearner(spec, logs=run_dir / "ranks", devices=policy.gpus)
    elif settings.learner == "prime_rl":
        spec = _spec(policy, settings, objective, optimizer, passes)
        learner = _prime_rl_learner(spec, run_dir / "prime_rl")
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


def _spec(
    policy: Policy,
    settings: LearnerSettings,
    objective: Objective,
    optimizer: OptimizerSettings,
    passes: PassSettings,
) -> LearnerSpec:
    return LearnerSpec(
        model=policy.settings.path.resolve(),
        dtype=policy.settings.dtype,
        objective=objective,
        optimizer=optimizer,
        passes=passes,
        settings=settings,
    )


def _prime_rl_learner(spec: LearnerSpec, folder: Path) -> Learner:
    """Write the configuration of prime-rl's trainer into `folder`, and return its learner."""
    from hone.integrations.prime_rl.configuration import to_toml, trainer_config  # needs an extra
    from hone.integrations.prime_rl.learner import PrimeRLLearner

    settings, objective = spec.settings, spec.objective
    if not isinstance(settings, TrainSettings) or not isinstance(objective, PolicyObjective):
        raise TrainError(
            'train.learner = "prime_rl" is for `hone train`: set train.learner to another one for `hone sft`'
        )
    output_dir = (folder / "output").resolve()
    config = trainer_config(settings, objective, model=spec.model, output_dir=output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "trainer.toml", to_toml(config))
    return PrimeRLLearner(spec, settings.prime_rl, output_dir=output_dir)
