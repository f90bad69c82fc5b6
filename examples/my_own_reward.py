"""A reward of your own: resolve the task, in few turns and with a small patch.

    .venv/bin/python examples/my_own_reward.py [SETTING=VALUE ...]

It trains the quickstart's model with this reward into runs/my-reward (minutes on two cores) and prints the
mean reward of the last step's outcomes. A reward is any function from a rollout to a number, which a recipe
names by its entry point; see docs/23-algorithms.md.
"""

import sys

import hone
from hone.types import Trajectory


def small_and_quick(rollout: Trajectory) -> float:
    assert rollout.reward is not None, "rollouts with infrastructure faults earn nothing and are not asked"
    lines = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in rollout.patch.splitlines())
    return rollout.reward - 0.02 * len(rollout.turns) - 0.01 * lines


def main() -> None:
    settings = {"run_dir": "runs/my-reward", "train.algorithm.reward": "my_own_reward:small_and_quick"}
    changed = dict(word.split("=", 1) for word in sys.argv[1:])
    report = hone.train("quickstart", settings | changed)
    print(f"{report.steps} steps, reward {report.reward:+.2f}, model in {report.checkpoint}")


if __name__ == "__main__":
    main()
