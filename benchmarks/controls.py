"""Controls of data sets: how many tests have one, what they cost, and whether honest patches raise an alarm.

    python benchmarks/controls.py TASKS.jsonl [MORE.jsonl ...] [--gradings 500] [--at-once 2]

The tasks must have been validated: `hone tasks validate -o`, mining and mutation do so. Each task's gold and
empty patch are graded in turn, again and again, until there were `--gradings` of each file: half of them with
all controls, half with none. An alarm is a tampered verdict, or an unresolved gold patch. The cost is the
time of a whole grading and of its test processes alone, with all controls against none: medians over the
tasks. The last line is JSON; the exit status is 1 after an alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.own_tasks import SANDBOXES
from benchmarks.parts.controls import controls_of
from hone.cli.grade import load_usable_tasks
from hone.grading import Grader, GradingSettings
from hone.sandbox import make_provider
from hone.types import Task, Verdict


@dataclass(frozen=True, slots=True)
class Graded:
    task: str
    gold: bool
    share: float  # of files with controls
    seconds: float  # of the whole grading
    verdict: Verdict

    @property
    def alarm(self) -> bool:
        return self.verdict.tampered is not None or (self.gold and not self.verdict.resolved)


async def grade_all(tasks: Sequence[Task], gradings: int, at_once: int) -> list[Graded]:
    slots = asyncio.Semaphore(at_once)
    graded: list[Graded] = []
    with tempfile.TemporaryDirectory(prefix="hone-controls-", ignore_cleanup_errors=True) as folder:
        async with make_provider(SANDBOXES) as provider:
            graders = {
                share: Grader(
                    provider,
                    GradingSettings(concurrency=at_once, controls=share),
                    cache=Path(folder),
                    limits=SANDBOXES.limits(),
                )
                for share in (0.0, 1.0)
            }

            async def grade(task: Task, gold: bool, share: float) -> None:
                async with slots:
                    started = time.monotonic()
                    patch = task.checks.gold_patch if gold else ""
                    verdict = await graders[share].grade_uncached(task, patch)
                    graded.append(Graded(task.id, gold, share, time.monotonic() - started, verdict))
                    if len(graded) % 20 == 0:
                        alarms = sum(each.alarm for each in graded)
                        print(f"{len(graded)} of {gradings}, {alarms} alarms", file=sys.stderr)

            async with asyncio.TaskGroup() as group:
                for number in range(gradings):
                    turn, i = divmod(number, 4 * len(tasks))
                    task = tasks[i // 4]
                    group.create_task(grade(task, gold=i % 2 == 0, share=float((i // 2 + turn) % 2)))
    return graded


def added(graded: Sequence[Graded]) -> dict[str, float]:
    """Return the medians over the tasks of the time with all controls, divided by the time without."""
    whole: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    tests: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in graded:
        if each.gold:
            whole[each.task][each.share].append(each.seconds)
            tests[each.task][each.share].append(each.verdict.seconds)
    found: dict[str, float] = {}
    for name, times in (("whole", whole), ("tests", tests)):
        pairs = [
            (statistics.median(t[1.0]), statistics.median(t[0.0])) for t in times.values() if len(t) == 2
        ]
        found[f"{name}_ratio_p50"] = round(statistics.median(a / b for a, b in pairs), 3)
        found[f"{name}_added_s_p50"] = round(statistics.median(a - b for a, b in pairs), 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--gradings", type=int, default=500, help="of each file")
    parser.add_argument("--at-once", type=int, default=2)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in arguments.tasks:
        tasks = load_usable_tasks(path)
        graded = asyncio.run(grade_all(tasks, arguments.gradings, arguments.at_once))
        alarms = [each for each in graded if each.alarm]
        for each in alarms:
            print(f"{each.task}: {each.verdict.tampered or each.verdict.log[-300:]}")
        counts = {
            name: sum(getattr(each.verdict.controls, name) for each in graded)
            for name in ("planned", "failed")
        }
        rows.append(
            {
                "tasks": len(tasks),
                "file": path.name,
                **controls_of(tasks),
                "gradings": len(graded),
                "alarms": len(alarms),
                **counts,
                **added(graded),
            }
        )
        print(json.dumps(rows[-1], indent=2))
    print(json.dumps({"controls": rows}))
    return int(any(row["alarms"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
