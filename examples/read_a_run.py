"""Read a training into tables: its learning curve, how its rollouts ended, and one rollout.

    .venv/bin/python examples/read_a_run.py runs/quickstart

It prints a line for each step, the number of rollouts by outcome, and the last turn of the last rollout that
resolved its task. The tables are pyarrow's; `.to_pandas()` makes data frames, where pandas is installed.
"""

import sys
from collections import Counter

import hone


def main() -> None:
    run = hone.read_run(sys.argv[1])
    for step in run.steps.to_pylist():
        print(f"step {step['step']:3}  reward {step['reward']:+.2f}  resolved {step['resolve_rate']:.0%}")

    outcomes = Counter(run.rollouts.column("outcome").to_pylist())
    print("rollouts:", ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))

    resolved = [row for row in run.rollouts.to_pylist() if row["resolved"]]
    if resolved:
        rollout = run.rollout(resolved[-1]["directory"])
        print(f"last resolved: {rollout.task_id}, {len(rollout.turns)} turns; it ended with:")
        print(rollout.turns[-1].reply)


if __name__ == "__main__":
    main()
