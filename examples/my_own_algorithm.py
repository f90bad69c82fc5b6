"""An algorithm of your own: advantages against the median of the group, and a wider clip.

    .venv/bin/python examples/my_own_algorithm.py [SETTING=VALUE ...]

It trains the quickstart's model with it into runs/my-algorithm (minutes on two cores) and prints the steps. A
recipe names the algorithm by its entry point; docs/23-algorithms.md says what else an `Algorithm` can change.
"""

import sys
from collections.abc import Sequence

import numpy as np

import hone
from hone.train.algorithms import Algorithm, Group, GroupAdvantages


def advantages(groups: Sequence[Group], settings: object) -> list[GroupAdvantages]:
    return [GroupAdvantages(rollouts=group.rewards - np.median(group.rewards)) for group in groups]


AGAINST_MEDIAN = Algorithm(advantages=advantages, clip_high=0.28, normalisation="trajectory")


def main() -> None:
    settings = {
        "run_dir": "runs/my-algorithm",
        "train.algorithm.name": "custom",
        "train.algorithm.entry_point": "my_own_algorithm:AGAINST_MEDIAN",
    }
    changed = dict(word.split("=", 1) for word in sys.argv[1:])
    report = hone.train("quickstart", settings | changed)
    for step in hone.read_run(report.run_dir).steps.to_pylist():
        print(f"step {step['step']}: reward {step['reward']:+.2f}, clipped {step['clip_fraction']:.1%}")


if __name__ == "__main__":
    main()
