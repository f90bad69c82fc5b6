"""Time the pages of a large run: the first table of rollouts, the whole index, and one long rollout.

The run is made with the real ledger and store, so its files are those of a training.

    .venv/bin/python benchmarks/view_records.py --rollouts 10000 --turns 200 --tokens 100000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hone.outcomes import Outcome
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.store import Store
from hone.types import Call, Node, Sampler, TestStatus, TokenTree, Trajectory, Turn, Verdict
from hone.utils.jsonl import append_json
from hone.view.library import Library
from hone.view.records import Filter
from hone.view.values import json_ready

GROUP = 8
GROUPS_PER_STEP = 16
LOG = "=" * 70 + "\nFAIL: test_1 (tests.test_a.Tests.test_1)\n" + "-" * 70 + "\nAssertionError: 0 != 1\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the pages of a large run.")
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=200, help="of the long rollout")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the long rollout")
    parser.add_argument("--run", type=Path, help="keep the run in this directory, or use the one there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if not (run / "ledger.sqlite").is_file():
            timed("make the run", lambda: make_run(run, options.rollouts))
            long = made(0, 0, options.turns, options.tokens, rollout_id="long")
            Store(run / "rollouts").save(long, group=0, index=99)
        measure(run)


def measure(run: Path) -> None:
    """Print the seconds of each page, of a library that has just started."""
    library = Library([run])
    name = timed("find the run", library.runs)[0].name
    timed("first table", lambda: library.rollouts(name, Filter(), 0, 100))
    reader = library.reader(name)
    timed("read all stored rollouts", reader.read_stored)
    timed("table, all read", lambda: library.rollouts(name, Filter(), 0, 100))
    table = timed(
        "table, filtered", lambda: library.rollouts(name, Filter(outcome="unresolved", sort="-turns"), 0, 100)
    )
    timed("run page", lambda: library.run(name))
    timed("run page again", lambda: library.run(name))
    timed("a rollout", lambda: library.rollout(name, table.rows[0].directory or ""))
    long = next(each for each in reader.names() if each.startswith("long"))
    timed("the long rollout", lambda: library.rollout(name, long))
    timed("its tokens", lambda: library.tokens(name, long))


def timed(what: str, act: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = act()
    json_ready(result)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:<26}{wall:9.3f} s{cpu:9.3f} s of CPU", flush=True)
    return result


def make_run(run: Path, rollouts: int) -> None:
    """Make a finished run of `rollouts` rollouts in groups of 8, 16 groups per step."""
    store = Store(run / "rollouts")
    with Ledger.open(run) as ledger:
        for step in range(rollouts // (GROUP * GROUPS_PER_STEP) + 1):
            used: list[str] = []
            for group in range(GROUPS_PER_STEP):
                for index in range(GROUP):
                    number = (step * GROUPS_PER_STEP + group) * GROUP + index
                    if number >= rollouts:
                        break
                    used.append(add(ledger, store, step, group, index, number))
            if used:
                ledger.commit_step(step, dict.fromkeys(used, TRAINED))
                write_metrics(run, step)


def add(ledger: Ledger, store: Store, step: int, group: int, index: int, number: int) -> str:
    """Dispatch, store and end one rollout; return its id."""
    rollout = made(step, number, 3 + number % 5, 200, rollout_id=f"s{step}g{group}-{index}")
    ledger.dispatch(
        rollout.rollout_id,
        group_id=f"s{step}g{group}",
        index=index,
        position=step * GROUPS_PER_STEP + group,
        task_id=rollout.task_id,
        sampled_version=step,
    )
    rollout = replace(rollout, group_id=f"s{step}g{group}")
    directory = store.save(rollout, group=group, index=index)
    ledger.end(rollout.rollout_id, rollout.outcome, reward=rollout.reward, directory=directory)
    return rollout.rollout_id


def write_metrics(run: Path, step: int) -> None:
    busy = {"busy/engine": 0.9, "busy/sandbox": 0.3, "busy/trainer": 0.2}
    append_json(
        run / "metrics.jsonl", {"kind": "train", "step": step, "time": time.time(), "loss": 0.1, **busy}
    )


def made(step: int, number: int, turns: int, tokens: int, *, rollout_id: str) -> Trajectory:
    """Return a rollout of `turns` turns and about `tokens` tokens, half of them sampled."""
    size = max(1, tokens // (2 * turns))
    nodes: list[Node] = []
    for turn in range(turns):
        for sampled in (False, True):
            ids = np.arange(size, dtype=np.int32) % 500
            logprobs = np.full(size if sampled else 0, -0.5, np.float32)
            version = np.full(size if sampled else 0, step, np.int32)
            parent = len(nodes) - 1 if nodes else None
            nodes.append(
                Node(
                    parent=parent, tokens=ids, sampled=sampled, logprobs=logprobs, version=version, turn=turn
                )
            )
    resolved = number % 3 == 0
    outcome = Outcome.RESOLVED if resolved else Outcome.UNRESOLVED
    said = [
        Turn(
            index=turn,
            node=2 * turn + 1,
            reply=f"```bash\nsed -n {turn}p a.py\n```",
            action=f"sed -n {turn}p a.py",
            exit_code=0,
            observation="x = 1\n" * 20,
            seconds=0.5,
        )
        for turn in range(turns)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a.py is wrong"}]
    for turn in said:
        messages.append({"role": "assistant", "content": turn.reply})
        messages.append({"role": "user", "content": turn.observation})
    return Trajectory(
        task_id=f"task-{number // GROUP % 400:04}" if rollout_id != "long" else "long",
        rollout_id=rollout_id,
        group_id="g",
        tree=TokenTree(nodes),
        turns=tuple(said),
        messages=tuple(messages),
        patch="--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        outcome=outcome,
        reward=1.0 if resolved else -1.0,
        verdict=Verdict(
            resolved=resolved,
            tests={
                f"tests/test_a.py::Tests::test_{i}": TestStatus.PASSED if resolved else TestStatus.FAILED
                for i in range(4)
            },
            score=float(resolved),
            log="" if resolved else LOG,
        ),
        timings={"start": 0.2, "agent": 0.5 * turns, "grade": 0.3},
        sampler=Sampler(agent="bash", engine="local", trainable=True),
        started_at=time.time(),
        calls=tuple(
            Call(
                index=turn,
                node=2 * turn + 1,
                purpose="main",
                fork=None,
                prompt_tokens=2 * size * turn + size,
                sampled_tokens=size,
                seconds=0.4,
            )
            for turn in range(turns)
        ),
    )


if __name__ == "__main__":
    main()
