"""Run agents on tasks and compare how their rollouts ended.

    .venv/bin/python examples/run_an_agent.py [AGENT ...]

Default: the scripted agents `oracle` (applies the reference fix) and `noop` (changes nothing). It prints one
line for each rollout: its task, outcome, reward and turns. With a model, use `bash`:

    hone.run(task, "bash", engine="http://localhost:8000", model="my-model")
"""

import sys

import hone


def main() -> None:
    tasks = hone.load_tasks("curriculum", train=2, test=0, unseen=0)
    for agent in sys.argv[1:] or ["oracle", "noop"]:
        with hone.open_rollouts(agent, progress=False) as rollouts:
            for (rollout,) in rollouts.run(tasks):
                print(agent, rollout.task_id, rollout.outcome, rollout.reward, f"{len(rollout.turns)} turns")


if __name__ == "__main__":
    main()
