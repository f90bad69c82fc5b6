"""Hone's rollouts for TRL's trainers: a worker for the asynchronous one, environments for the plain one.

    AsyncGRPOTrainer -- weights --> HoneRollouts: engine <- agents <-> sandboxes -> verdicts -> advantages
            ^------------------ rows with log-probabilities, versions and advantages --'

Tested with TRL 1.16.
"""

from hone.integrations.trl.environments import open_environments
from hone.integrations.trl.rollouts import HoneRollouts

__all__ = ["HoneRollouts", "open_environments"]
