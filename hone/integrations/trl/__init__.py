"""Hone's rollouts for TRL's asynchronous GRPO trainer: a rollout worker and a weight transfer in one object.

    AsyncGRPOTrainer -- weights --> HoneRollouts: engine <- agents <-> sandboxes -> verdicts -> advantages
            ^------------------ rows with log-probabilities, versions and advantages --'

Tested with TRL 1.16.
"""

from hone.integrations.trl.rollouts import HoneRollouts

__all__ = ["HoneRollouts"]
