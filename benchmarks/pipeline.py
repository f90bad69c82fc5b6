"""What collecting rollouts while the trainer works is worth, simulated.

python benchmarks/pipeline.py               a row per bound on staleness, then one JSON line; four CPU minutes
python benchmarks/pipeline.py --limit-s inf rollouts without a time limit; --groups, --places: other sizes

The pipeline, window, slots and ledger are the real ones, under virtual time; rollouts, engine and trainer
take their seconds from distributions. Rollouts are heavy-tailed: lognormal, the 99th percentile 20 times the
median (half of the variance between tasks), and end after 40 times the median, as `rollout.time_limit_s` ends
real ones. The assumed sizes: 64 servers that sample 2 replies each at a time, 128 sandboxes, 104 groups of 8
rollouts a step; 120 s of training and 15 s of weight update a step. 32 steps are measured: over fewer, a
pipeline that has put off the longest rollouts of the first ones looks faster than it is.

How the figure depends on the sizes: a synchronous step lasts about as long as its longest rollout, L, and a
full engine would need T for all of them. Staleness S hides L where L is below about S x T. So the gain is at
most L / T, and reaches that from S = L / T on. Larger steps (T) leave less to gain, and longer rollouts
without a limit (L) need more staleness.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from hone.rollout.attempts import Attempt
from hone.rollout.groups import Group, seed_of
from hone.rollout.settings import RolloutSettings
from hone.simulate.result import Result
from hone.simulate.settings import SimulateSettings
from hone.simulate.training import Simulation, simulate, simulated_task
from hone.simulate.virtual_time import run
from hone.simulate.workload import GivenWorkload

STALENESS = (0, 1, 2, 4, 8)
SERVERS, GROUP_SIZE = 64, 8
SETTINGS = SimulateSettings(
    tasks=1024,
    start_s=1.0,
    turns=3,
    turns_ratio=20,
    reply_s=35,
    reply_ratio=2,
    command_s=4,
    command_ratio=2,
    grade_s=5,
    grade_ratio=2,
    publish_s=15,
)
TRAIN_S = 120.0
CLASSES = 4  # of tasks by length, equally many in each


def workload() -> GivenWorkload:
    return GivenWorkload(SETTINGS, seed=0, train_s=TRAIN_S)


def tail(given: GivenWorkload, rollouts: int = 20_000) -> tuple[float, float]:
    """Return the median seconds of a rollout that waits for nothing, and the 99th percentile / median."""
    seconds = sorted(
        given.draw(
            Attempt(
                rollout_id="",
                group_id="",
                task=simulated_task(given.task_ids[number % len(given.task_ids)]),
                workspace=Path(),
                position=0,
                index=0,
                seed=seed_of(number),
            )
        ).seconds
        for number in range(rollouts)
    )
    median = statistics.median(seconds)
    return median, seconds[int(0.99 * rollouts)] / median


def simulation(max_staleness: int, *, groups: int, places: int, steps: int, limit_s: float) -> Simulation:
    first = 2 * (max_staleness + 1)  # the first window, and as long again
    return Simulation(
        rollout=RolloutSettings(
            group_size=GROUP_SIZE,
            concurrent_episodes=SERVERS * places,
            max_staleness=max_staleness,
            time_limit_s=min(limit_s, 1e7),
            reply_timeout_s=1e7,
        ),
        groups_per_step=groups,
        servers=SERVERS,
        replies=places,
        steps=first + steps + max_staleness + 1,
        first=first,
        last=first + steps,
    )


def chi_square(counts: Sequence[int]) -> tuple[float, float]:
    """Return the statistic and the p-value of equal counts in four classes (3 degrees of freedom)."""
    expected = sum(counts) / len(counts)
    statistic = sum((count - expected) ** 2 for count in counts) / expected if expected else 0.0
    half = statistic / 2
    return statistic, math.erfc(math.sqrt(half)) + 2 * math.sqrt(half / math.pi) * math.exp(-half)


def simulated(case: Simulation) -> tuple[Result, list[int], list[int]]:
    """Return the result, and the trained groups of each class of tasks: all, and those of the quickest.

    Those of the quickest are trained before their last step: what a pipeline that discards late groups keeps.
    """
    given = workload()
    by_length = sorted(given.task_ids, key=given.task_length)
    class_of = {task_id: CLASSES * rank // len(by_length) for rank, task_id in enumerate(by_length)}
    every, quick = [0] * CLASSES, [0] * CLASSES

    def count(step: int, groups: Sequence[Group]) -> None:
        if step < case.first:
            return
        for group in groups:
            every[class_of[group.task.id]] += 1
            oldest = min(int(t.tree.nodes[0].version[0]) for t in group.trajectories)
            if step - oldest < case.rollout.max_staleness:
                quick[class_of[group.task.id]] += 1

    return run(simulate(case, given, on_step=count)), every, quick


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--places", type=int, default=2, help="replies that a server samples at a time")
    parser.add_argument("--groups", type=int, default=104, help="groups of 8 rollouts per step")
    parser.add_argument(
        "--steps", type=int, default=32, help="steps that are measured, after the first windows"
    )
    parser.add_argument("--limit-s", type=float, default=5280.0, help="time limit of a rollout")
    parser.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    options = parser.parse_args()
    given = workload()
    median, ratio = tail(given)
    print(f"a rollout: median {median:.0f} s, 99th percentile {ratio:.1f} times the median")
    rows: list[dict[str, object]] = []
    synchronous = 0.0
    cases = [
        simulation(
            bound,
            groups=options.groups,
            places=options.places,
            steps=options.steps,
            limit_s=options.limit_s,
        )
        for bound in options.staleness
    ]
    with get_context("spawn").Pool(len(cases)) as pool:
        found = pool.map(simulated, cases)
    for bound, (result, every, quick) in zip(options.staleness, found, strict=True):
        synchronous = synchronous or result.rollouts_per_hour
        row = {
            "max_staleness": bound,
            "speedup": round(result.rollouts_per_hour / synchronous, 3),
            "rollouts_per_hour": round(result.rollouts_per_hour),
            "busy_engine": round(result.busy["engine"], 4),
            "places_in_use": round(result.replies_share, 4),
            "busy_trainer": round(result.busy["trainer"], 4),
            "step_s": round(result.step_s),
            "wait_s": round(result.wait_s),
            "staleness": dict(result.staleness),
            "trained_by_length": every,
            "p_all": round(chi_square(every)[1], 4),
            "quickest_by_length": quick,
            "p_quickest": round(chi_square(quick)[1], 4),
            "limit": result.limit,
            "cpu_s": round(result.cpu_s, 1),
        }
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    print(
        json.dumps(
            {
                "benchmark": "pipeline",
                "servers": SERVERS,
                "places": options.places,
                "groups_per_step": options.groups,
                "group_size": GROUP_SIZE,
                "steps": options.steps,
                "limit_s": options.limit_s if math.isfinite(options.limit_s) else None,
                "tail_ratio": round(ratio, 2),
                "never_beyond_bound": all(
                    max(row["staleness"], default=0) <= row["max_staleness"]  # type: ignore[operator,type-var]
                    for row in rows
                ),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
