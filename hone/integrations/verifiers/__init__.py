"""Hone's tasks, sandboxes, agent and grading as a plug-in of verifiers: `vf-eval hone-verifiers ...`.

For its trainers and their users too: prime-rl, miles, NeMo Gym.
"""

from hone.integrations.peer import require

require("verifiers", ">=0.4,<0.5", "pip install 'verifiers>=0.4,<0.5'")

from hone.integrations.verifiers.env import HoneEnv, HoneEnvConfig  # noqa: E402
from hone.integrations.verifiers.harness import HoneHarness, HoneHarnessConfig  # noqa: E402
from hone.integrations.verifiers.taskset import HoneTaskset, HoneTasksetConfig  # noqa: E402

__all__ = ["HoneEnv", "HoneEnvConfig", "HoneHarness", "HoneHarnessConfig", "HoneTaskset", "HoneTasksetConfig"]
