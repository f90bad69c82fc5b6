"""Train a small model on the rollouts of a teacher that resolved their tasks (rejection sampling).

    .venv/bin/python examples/teacher_traces_to_sft.py [FOLDER] [TASKS]

The teacher here is a scripted agent, right in two of three cases; a model behind an API is
`hone.evaluate(tasks, "bash", engine=ADDRESS, model=NAME, out=...)`. The student is a new model of half a
million parameters; another one is the folder or hub name in `model.path`. It prints how many traces were
kept, and the loss. Minutes on two cores with the default of 400 tasks.
"""

import sys
from pathlib import Path

import hone
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny

RECIPE = "quickstart"


def main(folder: Path, count: int) -> None:
    tasks = hone.load_tasks("curriculum", train=count, test=0, unseen=0, variety=2)
    teacher = {"agent.accuracy": 0.67, "agent.prompts": "tiny"}
    traces = hone.evaluate(tasks, "demonstrator", out=folder / "traces", settings=teacher)
    print(f"the teacher resolved {traces.resolve_rate:.0%} of {traces.n} tasks")

    run = hone.read_run(traces.out)
    rollouts = [run.rollout(name) for name in run.rollouts.column("directory").to_pylist()]
    texts = [str(message["content"]) for rollout in rollouts for message in rollout.messages]
    student = folder / "student"
    if not student.exists():
        make_tiny(texts, student, TinyModelSettings(hidden_size=128, layers=2))

    settings = {"run_dir": folder / "sft", "model.path": student, "demonstrations.path": traces.out}
    report = hone.sft(RECIPE, settings)
    print(f"trained on {report.demonstrations} traces, loss {report.loss}, model in {report.checkpoint}")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0] if words else "runs/traces-to-sft"), int(words[1]) if words[1:] else 400)
