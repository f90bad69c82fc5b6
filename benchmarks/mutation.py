"""Tasks by seeding bugs into real packages: how many are tried, how many admitted, why the rest falls.

    python benchmarks/mutation.py [--package toolz==1.2.0 --count 200] [--repeat 3] [--keep DIR]

Without --package: 200 tasks from one package, and 20 from each of two more. A task is admitted when its gold
patch resolves it every time and no patch never does. Prints statements for reading, and ends with one line of
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts.controls import controls_of
from benchmarks.parts.packages import latest_repository
from hone.curate.mutation.engine import MutationReport, mutate
from hone.curate.runner import Runner
from hone.grading.settings import GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.formats import save
from hone.types import Task

SANDBOXES = SandboxSettings(memory_mib=2048, pids=512, disk_mib=2048)
PACKAGES = (("toolz==1.2.0", 200), ("funcy==2.1", 20), ("sqlparse==0.6.1", 20))


async def seed(package: str, count: int, repeats: int) -> tuple[MutationReport, float]:
    """What became of the bugs, and the seconds it took, installation and admission included."""
    name, _, version = package.partition("==")
    repository = await asyncio.to_thread(latest_repository, name, version)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hone-mutation-", ignore_cleanup_errors=True) as cache:
        async with make_provider(SANDBOXES) as provider:
            report = await mutate(
                repository,
                Runner(
                    provider=provider,
                    cache=Path(cache),
                    settings=GradingSettings(concurrency=os.cpu_count() or 1),
                    limits=SANDBOXES.limits(),
                ),
                count=count,
                repeats=repeats,
                progress=show_progress,
            )
    return report, time.monotonic() - started


def show_progress(message: str, tasks: Sequence[Task]) -> None:
    print(f"{len(tasks)} tasks: {message}", file=sys.stderr)


def row(package: str, count: int, report: MutationReport, seconds: float) -> dict[str, Any]:
    return {
        "package": package,
        "asked": count,
        "admitted": len(report.tasks),
        "seconds": round(seconds, 1),
        "tests": report.tests,
        "candidates": report.candidates,
        "ran": report.ran,
        "kinds": dict(report.kinds),
        "fell": {str(reason): number for reason, number in report.rejected.items()},
        "refused": dict(report.refused),
        **controls_of(report.tasks),
        "operators": sum(bool(tasks) for _, tasks in report.operators.values()),
    }


def show_statements(tasks: Sequence[Task], count: int) -> None:
    for task in random.Random(0).sample(list(tasks), min(count, len(tasks))):
        print(f"\n{'-' * 100}\n{task.id}  ({len(task.checks.fail_to_pass)} tests to fix)\n\n{task.problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--package", help="name==version, as the package index has it")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--statements", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="a folder for the tasks")
    arguments = parser.parse_args()
    chosen = ((arguments.package, arguments.count),) if arguments.package else PACKAGES
    rows: list[dict[str, Any]] = []
    tasks: list[Task] = []
    for package, count in chosen:
        report, seconds = asyncio.run(seed(package, count, arguments.repeat))
        rows.append(row(package, count, report, seconds))
        tasks += report.tasks
        print(json.dumps(rows[-1], indent=2))
        if arguments.keep:
            save(report.tasks, arguments.keep / f"{package}.jsonl")
    show_statements(tasks, arguments.statements)
    short = ("package", "asked", "admitted", "seconds", "candidates", "ran", "fell", "controlled")
    print(json.dumps({"mutation": [{name: each[name] for name in short} for each in rows]}))


if __name__ == "__main__":
    main()
