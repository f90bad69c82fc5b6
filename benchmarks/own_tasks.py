"""Tasks from real packages' own histories: how many commits are tried, how many admitted, why the rest falls.

    python benchmarks/own_tasks.py [--packages tomlkit sqlparse] [--repeat 3] [--statements 20] [--keep DIR]

Each release of a package is one commit, made of its source distribution (benchmarks/parts/packages.py). So a
commit is larger than most, its message is the change log of the release, and the bounds on size are wider
here than by default. Everything else is as `hone tasks mine` does it. Prints statements for reading, and ends
with one line of JSON.
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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts.controls import controls_of
from benchmarks.parts.packages import PACKAGES, Package, package_repository
from hone.curate.journal import Journal
from hone.curate.mining.candidates import select, walk
from hone.curate.mining.mine import Report, mine, read_results, report
from hone.curate.mining.settings import MiningSettings
from hone.curate.runner import Runner
from hone.grading.settings import GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.formats import save
from hone.tasks.repository import Repository
from hone.types import Task

TIMEOUT_S = 60.0
SANDBOXES = SandboxSettings(memory_mib=2048, pids=512, disk_mib=2048)


def settings(repeats: int) -> MiningSettings:
    """Roomy enough for the changes of a whole release."""
    return MiningSettings(
        max_source_files=25,
        max_source_lines=1500,
        max_test_files=60,
        max_test_lines=4000,
        repeats=repeats,
        timeout_s=TIMEOUT_S,
    )


async def mine_package(package: Package, runner: Runner, repeats: int, scratch: Path) -> Report:
    path = await asyncio.to_thread(package_repository, package.name, package.versions)
    repository = Repository.open(path)
    chosen = select(repository, walk(repository), settings(repeats))
    journal = Journal(scratch / f"{package.name}.partial", {})
    await mine(repository, chosen, journal, runner, settings=settings(repeats), issues={})
    return report(chosen, read_results(journal))


async def mine_all(packages: Sequence[Package], repeats: int) -> tuple[list[Task], list[dict[str, Any]]]:
    """The admitted tasks, and a row per package."""
    tasks: list[Task] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hone-own-", ignore_cleanup_errors=True) as folder:
        async with make_provider(SANDBOXES) as provider:
            runner = Runner(
                provider=provider,
                cache=Path(folder) / "workspaces",
                settings=GradingSettings(concurrency=os.cpu_count() or 1),
                limits=SANDBOXES.limits(),
            )
            for package in packages:
                started = time.monotonic()
                found = await mine_package(package, runner, repeats, Path(folder))
                tasks += found.tasks
                rows.append(row(package, found, time.monotonic() - started))
                show(rows[-1])
    return tasks, rows


def row(package: Package, found: Report, seconds: float) -> dict[str, Any]:
    return {
        "package": package.name,
        "commits": len(package.versions) - 1,
        "candidates": found.candidates,
        "admitted": len(found.tasks),
        "skipped": {reason.value: count for reason, count in found.skipped.items()},
        "refused": {reason.value: count for reason, count in found.refused.items()},
        "details": [f"{each.reason}: {each.detail}" for each in found.details],
        "seconds": round(seconds, 1),
    }


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['package']}: {found['commits']} releases, {found['candidates']} candidates, "
        f"{found['admitted']} admitted, {found['seconds']:.0f} s"
    )
    for what in ("skipped", "refused"):
        for reason, count in found[what].items():
            print(f"    {what} {count}: {reason}")
    for detail in found["details"]:
        print(f"        {detail[:160]}")


def show_statements(tasks: Sequence[Task], count: int) -> None:
    for task in random.Random(0).sample(list(tasks), min(count, len(tasks))):
        print(f"\n{'-' * 100}\n{task.id}  ({len(task.checks.fail_to_pass)} tests to fix)\n\n{task.problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--packages", nargs="+", choices=[each.name for each in PACKAGES])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--statements", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="a folder for mined.jsonl")
    arguments = parser.parse_args()
    packages = [each for each in PACKAGES if not arguments.packages or each.name in arguments.packages]
    tasks, rows = asyncio.run(mine_all(packages, arguments.repeat))
    if arguments.keep and tasks:
        save(tasks, arguments.keep / "mined.jsonl")
    show_statements(tasks, arguments.statements)
    refused: Counter[str] = Counter()
    for each in rows:
        refused.update(each["refused"])
    total = {
        name: round(sum(each[name] for each in rows))
        for name in ("commits", "candidates", "admitted", "seconds")
    }
    by_package = {each["package"]: each["admitted"] for each in rows}
    total |= controls_of(tasks)
    print(json.dumps({"mining": {**total, "refused": dict(refused), "by_package": by_package}}))


if __name__ == "__main__":
    main()
