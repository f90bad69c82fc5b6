"""A small run directory, made with the real ledger and store."""

import json
from pathlib import Path

import numpy as np

from hone.outcomes import Outcome
from hone.rollout.ledger import MASKED, TRAINED, Ledger, dropped
from hone.rollout.store import Store
from hone.types import Node, TestStatus, TokenTree, Trajectory, Turn, Verdict


def make_run(folder: Path) -> Path:
    """Two committed steps and one rollout in flight.

    Step 0: reward +1 trained, -1 masked, an infrastructure fault. Step 1: +1 and +1 trained, -1 dropped.
    """
    folder.mkdir(parents=True)
    store = Store(folder / "rollouts")
    with Ledger.open(folder) as ledger:

        def roll(rollout_id: str, step: int, index: int, outcome: Outcome) -> None:
            ledger.dispatch(
                rollout_id,
                group_id=f"g{step}",
                index=index,
                position=step,
                task_id="train-0007",
                sampled_version=step,
            )
            if outcome is Outcome.SANDBOX_ERROR:
                ledger.end(rollout_id, outcome)
                return
            stored = trajectory(rollout_id, outcome)
            directory = store.save(stored, group=step, index=index)
            ledger.end(rollout_id, outcome, reward=stored.reward, directory=directory)

        roll("r00", 0, 0, Outcome.RESOLVED)
        roll("r01", 0, 1, Outcome.TURN_LIMIT)
        roll("broken", 0, 2, Outcome.SANDBOX_ERROR)
        ledger.commit_step(0, {"r00": TRAINED, "r01": MASKED})
        roll("r10", 1, 0, Outcome.RESOLVED)
        roll("r11", 1, 1, Outcome.RESOLVED)
        roll("flat", 1, 2, Outcome.UNRESOLVED)
        ledger.commit_step(1, {"r10": TRAINED, "r11": TRAINED, "flat": dropped("no_tokens")})
        ledger.dispatch("r20", group_id="g2", index=0, position=2, task_id="train-0007", sampled_version=2)
    records = [
        {"kind": "train", "step": step, "loss": 0.5, "resolve_rate": 0.5 + step / 2, "wait_s": 4.0 * step}
        | {"busy/engine": 0.5 * step, "busy/sandbox": 0.1, "busy/trainer": 0.75, "parked": 0.5 * step}
        for step in range(2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def trajectory(rollout_id: str, outcome: Outcome) -> Trajectory:
    solved = outcome is Outcome.RESOLVED
    tokens = np.array([3, 4], np.int32)
    prompt = Node(
        parent=None,
        tokens=np.array([1, 2], np.int32),
        sampled=False,
        logprobs=np.zeros(0, np.float32),
        version=np.zeros(0, np.int32),
        turn=0,
    )
    reply = Node(
        parent=0,
        tokens=tokens,
        sampled=True,
        logprobs=np.array([-0.5, -0.25], np.float32),
        version=np.zeros(2, np.int32),
        turn=0,
    )
    turn = Turn(
        index=0,
        node=1,
        reply="```bash\nsed -i s/-/+/ adder.py\n```",
        action="sed -i s/-/+/ adder.py",
        exit_code=0,
        observation="",
        seconds=0.02,
    )
    status = TestStatus.PASSED if solved else TestStatus.FAILED
    return Trajectory(
        task_id="train-0007",
        rollout_id=rollout_id,
        group_id="g0",
        tree=TokenTree([prompt, reply]),
        turns=(turn,),
        messages=(
            {"role": "system", "content": "You fix bugs."},
            {"role": "user", "content": "add is wrong"},
        ),
        patch="diff --git a/adder.py b/adder.py\n" if solved else "",
        outcome=outcome,
        reward=1.0 if solved else -1.0,
        verdict=Verdict(
            resolved=solved, tests={"tests/test_hidden.py::test_add": status}, score=float(solved)
        ),
        timings={"agent": 0.5, "grade": 0.25},
    )
