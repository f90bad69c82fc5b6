"""Verdicts and their cost, side by side with the SWE-bench harness over a local Docker engine.

    python benchmarks/grading.py --rows ROWS.parquet --repositories DIR [--only ID_OR_REPO ...] [--out FILE]
    python benchmarks/grading.py [--tasks TASKS.jsonl] [--harness-tasks 12] [--at-once 2] [--keep DIR]

With --rows, the gold, empty, half, broken and test-editing patches of a data set's rows are graded natively,
in the repositories of DIR, and compared with the harness's reading of the same command run plainly; see
`benchmarks/parts/rows.py`. The exit code is 1 unless each row is resolved by its gold patch alone and equal
test by test. --out keeps each result, and a second run goes on after them.

Without a file, tasks are mined from the releases of real packages first (benchmarks/own_tasks.py, which can
keep them in one). As many as the harness is to grade are taken, from all packages in turn. Every task has a
patch of each kind: gold, empty, idle, half right, broken, dishonest (several ways of each of the last two,
spread over the tasks). Both sides grade all of them, `--at-once` at a time, Hone in its namespaces provider,
the harness by its `run_evaluation` in images made here of the same repository, interpreter and pytest.
Verdicts are compared test by test, and each difference is listed:

    fooled   a patch without a fix gets tests passed by the harness, and not by Hone
    misread  the harness takes tests for passed whose subtests failed
    refused  Hone throws a dishonest patch out with all of its tests; the harness fails it test by test
    undone   Hone leaves out what a dishonest patch does to the tests; the harness fails it with them
    fault    any other; the exit code is then 1

The cost of an evaluation is its wall time beyond the tests' own. Of Hone that is from before the sandbox is
asked for until the verdict is there, without the seconds of the test process; of the harness from the
container's creation to its removal, without its "Test runtime", which also has git and pytest's start in it.

Needs root and a Docker engine's programs (scripts/install-services.sh). The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.own_tasks import SANDBOXES, mine_all
from benchmarks.parts import harness_images, rows
from benchmarks.parts.packages import PACKAGES
from benchmarks.parts.predictions import KINDS, Prediction, make_predictions
from benchmarks.peers import swebench_harness
from benchmarks.sandbox import engine_of_our_own
from hone.environment import parse_patch
from hone.grading import Grader, GradingSettings
from hone.grading.rules import count
from hone.grading.verdict import WORDS
from hone.sandbox import make_provider
from hone.tasks.sources import load_all
from hone.tasks.workspace import prepare
from hone.types import Task, TestStatus, Verdict
from hone.utils.files import default_cache_dir

SORTS = ("fooled", "misread", "refused", "undone", "fault")
_SHOWN = 3  # tests named in a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One patch of one task, as both sides see it."""

    prediction: Prediction
    task: Task
    ours: Verdict
    our_seconds: float
    theirs: swebench_harness.Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    case: Case
    sort: str  # of SORTS
    what: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the two sides


def pick(tasks: Sequence[Task], most: int) -> list[Task]:
    """So many tasks, from all repositories in turn; their fixes change a module that is there before."""
    by_repository: dict[str, list[Task]] = {}
    for task in filter(changes_a_module, tasks):
        by_repository.setdefault(task.environment.repo, []).append(task)
    turns = itertools.zip_longest(*by_repository.values())
    return [task for turn in turns for task in turn if task is not None][:most]


def changes_a_module(task: Task) -> bool:
    parts = parse_patch(task.checks.gold_patch)
    return any(part.paths[0].endswith(".py") and "\n--- a/" in part.text for part in parts)


async def grade_with_hone(
    tasks: Mapping[str, Task], predictions: Sequence[Prediction], cache: Path, at_once: int
) -> list[tuple[Verdict, float]]:
    """Verdict and wall time of each; none is taken from a cache of verdicts.

    Args:
        cache: of the tasks' repositories.
    """
    settings = GradingSettings(concurrency=at_once)
    places = asyncio.Semaphore(at_once)

    async with make_provider(SANDBOXES) as provider:
        grader = Grader(provider, settings, cache=cache, limits=SANDBOXES.limits())

        async def verdict(prediction: Prediction) -> tuple[Verdict, float]:
            task = tasks[prediction.task_id]
            async with places:
                began = time.perf_counter()
                found = await grader.grade_uncached(task, prediction.patch)
                return found, time.perf_counter() - began

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(verdict(prediction)) for prediction in predictions]
    return [each.result() for each in running]


def evaluate_with_harness(
    tasks: Sequence[Task],
    predictions: Sequence[Mapping[str, Prediction]],
    workspaces: Mapping[str, Path],
    folder: Path,
    at_once: int,
) -> dict[tuple[str, str], swebench_harness.Evaluation]:
    """(task id, kind) -> evaluation; a run per kind, because it takes one patch of a task in each."""
    rows: list[dict[str, Any]] = []
    with engine_of_our_own() as base:
        say("images for the harness: the base")
        harness_images.build_base(base)
        for task in tasks:
            say(f"images for the harness: {task.id}")
            image = harness_images.build_image(task, workspaces[task.id], default_cache_dir() / "sites")
            rows.append(harness_images.row(task, workspaces[task.id], image))
        found: dict[tuple[str, str], swebench_harness.Evaluation] = {}
        for kind in KINDS:
            began = time.monotonic()
            patches = {each[kind].task_id: each[kind].patch for each in predictions}
            run = swebench_harness.evaluate(
                rows, patches, folder=folder / kind, run_id=f"hone-{kind}", workers=at_once
            )
            say(f"harness: {len(run)} patches, {kind}, in {time.monotonic() - began:.0f} s")
            found |= {(task, kind): evaluation for task, evaluation in run.items()}
    return found


# --- the comparison


def compare(case: Case) -> Difference | None:
    """What the two verdicts differ in, as one sentence of a sort."""
    ours, theirs = case.ours, case.theirs
    mine = passes(case)
    dishonest, sort = case.prediction.kind == "dishonest", "fault"
    if theirs.tests is None:  # it read none: it ran none, or their log is invalid
        passed = [test for test in mine if mine[test]]
        if ours.resolved == theirs.resolved and (not passed or case.prediction.kind == "empty"):
            return None
        sort = "undone" if dishonest and not ours.resolved else "fault"
        return Difference(case=case, sort=sort, what=f"{theirs.why} there; passed here: {_some(passed)}")
    more = [test for test, passed in theirs.tests.items() if passed and not mine[test]]
    less = [test for test in mine if mine[test] and not theirs.tests.get(test, False)]
    if not more and not less and ours.resolved == theirs.resolved:
        return None
    if not less and set(more) <= theirs.subtests_failed:
        sort = "misread"
    elif dishonest and not ours.resolved:
        fixed = set(more) & set(harness_images.told(case.task.checks.fail_to_pass))
        sort = "fooled" if theirs.resolved or fixed else "refused" if ours.tampered else "undone"
    there = "resolved" if theirs.resolved else "unresolved"
    alone = f"passed there alone: {_some(more)}" if more else f"passed here alone: {_some(less)}"
    return Difference(case=case, sort=sort, what=f"{there} there, {_why(ours)} here; {alone}")


def passes(case: Case) -> dict[str, bool]:
    """What Hone counts as passed, by the harness's names for tests: all of those that share one must pass."""
    checks = case.task.checks
    words = {test: WORDS[status] for test, status in case.ours.tests.items() if status in WORDS}
    report = count(words, checks.fail_to_pass, checks.pass_to_pass)
    found: dict[str, bool] = {}
    for counted in (report.fail_to_pass, report.pass_to_pass):
        for passed, tests in ((True, counted.success), (False, counted.failure)):
            for test in tests:
                (name,) = harness_images.told([test])
                found[name] = found.get(name, True) and passed
    return found


def _why(verdict: Verdict) -> str:
    if verdict.tampered is not None:
        return f"tampered ({verdict.tampered})"
    if verdict.resolved:
        return "resolved"
    counts = collections.Counter(verdict.tests.values())
    lines = verdict.log.strip().splitlines()
    last = f": {lines[-1][:160]}" if lines and counts[TestStatus.MISSING] else ""
    return f"unresolved ({', '.join(f'{n} {status}' for status, n in counts.items())}{last})"


def _some(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
    return (", ".join(tests[:_SHOWN]) or "none") + more


# --- the figures


def cost(pairs: Sequence[tuple[float, float | None]]) -> dict[str, float]:
    """Of (wall, tests' own) seconds; evaluations whose tests did not come to an end are left out."""
    known = [(wall, tests) for wall, tests in pairs if tests is not None]
    beyond = sorted(wall - tests for wall, tests in known)
    return {
        "evaluations": len(known),
        "overhead_s_p50": round(statistics.median(beyond), 3),
        "overhead_s_p90": round(beyond[int(0.9 * (len(beyond) - 1))], 3),
        "wall_s_p50": round(statistics.median(wall for wall, _ in known), 3),
        "tests_s_p50": round(statistics.median(tests for _, tests in known), 3),
    }


def show(cases: Sequence[Case], differences: Sequence[Difference]) -> dict[str, dict[str, int]]:
    """Print the table and the list; kind -> counts."""
    by_case = {(d.case.task.id, d.case.prediction.kind): d for d in differences}
    table: dict[str, dict[str, int]] = {}
    sorts = "  ".join(SORTS)
    print(f"{'patch':10}  cases  resolved  partly  there  tests told  equal  {sorts}")
    for kind in KINDS:
        of_kind = [case for case in cases if case.prediction.kind == kind]
        names = [(case.task.id, kind) for case in of_kind]
        found = collections.Counter(by_case[name].sort for name in names if name in by_case)
        table[kind] = {
            "cases": len(of_kind),
            "resolved": sum(case.ours.resolved for case in of_kind),
            "partly": sum(0 < case.ours.score < 1 for case in of_kind),  # of what is to be fixed
            "resolved_there": sum(case.theirs.resolved for case in of_kind),
            "tests_told_there": sum(case.theirs.tests is not None for case in of_kind),
            "equal": len(of_kind) - found.total(),
            **{sort: found[sort] for sort in SORTS},
        }
        widths = (7, 10, 8, 7, 12, 7, 8, 9, 9, 8, 7)
        row = "".join(f"{n:>{w}}" for n, w in zip(table[kind].values(), widths, strict=True))
        print(f"{kind:10}{row}")
    for difference in differences:
        prediction = difference.case.prediction
        name = f"{prediction.task_id}, {prediction.kind} ({prediction.how})"
        print(f"{difference.sort}: {name}: {difference.what}")
    return table


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """The result, and whether there is no fault in it."""
    mined = load_all(options.tasks) if options.tasks else asyncio.run(mine_all(PACKAGES, repeats=2))[0]
    tasks = pick(mined, options.harness_tasks)
    repositories = {task.environment.repo for task in tasks}
    say(f"{len(tasks)} of {len(mined)} tasks, of {len(repositories)} repositories")
    cache = folder / "workspaces"
    workspaces = {task.id: prepare(task, cache) for task in tasks}
    made = [make_predictions(task, workspaces[task.id], number) for number, task in enumerate(tasks)]
    predictions = [prediction for each in made for prediction in each.values()]
    by_id = {task.id: task for task in tasks}
    loads = [os.getloadavg()[0]]
    began = time.monotonic()
    graded = asyncio.run(grade_with_hone(by_id, predictions, cache, options.at_once))
    say(f"Hone: {len(graded)} patches in {time.monotonic() - began:.0f} s")
    loads.append(os.getloadavg()[0])
    theirs = evaluate_with_harness(tasks, made, workspaces, folder / "harness", options.at_once)
    cases = [
        Case(prediction=p, task=by_id[p.task_id], ours=v, our_seconds=s, theirs=theirs[p.task_id, p.kind])
        for p, (v, s) in zip(predictions, graded, strict=True)
    ]
    differences = [difference for case in cases if (difference := compare(case)) is not None]
    table = show(cases, differences)
    ours = cost([(case.our_seconds, case.ours.seconds or None) for case in cases])
    harness = cost([(c.theirs.seconds, c.theirs.test_seconds) for c in cases if c.theirs.seconds is not None])
    for name, figures in (("hone", ours), ("harness", harness)):
        print(f"{name:10}", "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    result = {
        "name": "grading",
        "at_once": options.at_once,
        "load_before": [round(each, 1) for each in loads],  # of the machine, before each side's run
        "metrics": {"tasks": len(tasks), "cases": table, "cost": ours},
        "peers": {"swebench_harness": harness},
        "ratios": {"overhead": round(harness["overhead_s_p50"] / ours["overhead_s_p50"], 1)},
        "differences": [
            {"task": d.case.task.id, "how": d.case.prediction.how, "sort": d.sort, "what": d.what}
            for d in differences
        ],
    }
    return result, all(difference.sort != "fault" for difference in differences)


def grade_rows(options: argparse.Namespace) -> None:
    tasks, refused = rows.usable_tasks(options.rows, options.repositories, options.only)
    for reason in refused.values():
        say(reason)
    compared = asyncio.run(rows.compare_rows(tasks, options.kinds, options.out))
    result = rows.result_of(compared, refused)
    print(json.dumps(result))
    sys.exit(0 if result["right_and_equal"] == result["rows"] else 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, help="a JSONL file of tasks; default: they are mined")
    parser.add_argument("--harness-tasks", type=int, default=12, help="how many are graded, by both sides")
    parser.add_argument("--at-once", type=int, default=2, help="evaluations at a time, on both sides")
    parser.add_argument("--keep", type=Path, help="a new folder for workspaces and the harness's logs")
    parser.add_argument("--rows", type=Path, help="rows of a data set, graded natively")
    parser.add_argument("--repositories", type=Path, help="directory of repositories named owner__name")
    parser.add_argument("--only", nargs="*", default=(), help="ids or repositories of the rows to grade")
    parser.add_argument("--kinds", nargs="*", default=rows.KINDS, choices=rows.KINDS, help="patches to grade")
    parser.add_argument("--out", type=Path, help="a file of results, which a second run continues")
    options = parser.parse_args()
    if options.rows:
        if options.repositories is None:
            parser.error("--rows needs --repositories")
        return grade_rows(options)
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        sys.exit("the harness needs root and dockerd here: run scripts/install-services.sh as root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with contextlib.ExitStack() as stack:
        if options.keep:
            options.keep.mkdir(parents=True)
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        result, good = run(options, folder.resolve())
    print(json.dumps(result))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
