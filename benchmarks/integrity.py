"""Who pays for what: a corpus of reward hacks, graded by Hone, the SWE-bench harness and a plain test.sh.

    python benchmarks/integrity.py [--columns hone swebench test.sh] [--only PART ...]
        [--gradings 1] [--write FOLDER]

Each patch of the corpus (benchmarks/parts/corpus) leaves the bug of its task in place. A row is an exploit, a
column a grader, a cell what the grader makes of it:

    paid     the grader says that the task is solved
    refused  the grader says that it is not
    excused  the grader says that its own run failed: a failure of the infrastructure, which is no verdict

    hone                   as `hone grade` and evaluations: the patch is read first, every control runs
    hone, patch not read   the same without the scan of the patch
    hone, no controls      without the scan and without controls
    swebench               the SWE-bench harness, edition 5: its run_evaluation over a local Docker engine;
                           excused is what it labels as an infrastructure failure or writes no report of
    test.sh                a script that runs pytest and writes 1 to reward.txt when pytest exits with 0, by
                           the conventions of Harbor's verifier, in one of Hone's sandboxes

The tasks are admitted first as `hone tasks validate` does, which finds their controls. Every task also has an
honest fix and an honest wrong patch: every column must pay for the first and none for the second. The exit
code is 1 when one does not, or when the column `hone` pays for an exploit or excuses one.

The harness needs root and a Docker engine's programs (scripts/install-services.sh). Without them, or with
`--swebench sandbox`, its own steps run in one of Hone's sandboxes and its own functions grade the log; the
result says which of the two ran. `--write` writes the corpus as a Harbor data set and grades nothing.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parts import harness_images
from benchmarks.parts.corpus import FIX, ISSUES, Patch, make_patches
from benchmarks.parts.corpus.harbor import write_data_set
from benchmarks.peers import swebench_harness, swebench_sandbox, test_script
from benchmarks.sandbox import engine_of_our_own
from hone.curate.journal import Journal
from hone.curate.record import with_proof
from hone.curate.validate import validate
from hone.grading import Grader, GradingSettings
from hone.grading.errors import GraderError
from hone.sandbox import Provider, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Task
from hone.utils.files import default_cache_dir

HONE, UNREAD, BARE, SWEBENCH, TEST_SH = (
    "hone",
    "hone, patch not read",
    "hone, no controls",
    "swebench",
    "test.sh",
)
COLUMNS = (HONE, UNREAD, BARE, SWEBENCH, TEST_SH)
TIMEOUT_S = 30  # of the test run of a peer; an honest one takes about a second
HARNESS_WORKERS = 6  # most of the harness's time is the wait for a container to stop
ENV = {
    "PYTHONPATH": "/testbed"
}  # the package is importable from everywhere, as after an editable installation


class Cell(StrEnum):
    PAID = "paid"
    REFUSED = "refused"
    EXCUSED = "excused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    patches: tuple[Patch, ...]
    tasks: Mapping[str, Task]  # by issue, with their controls
    workspace: Path  # the repository, on the host


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def make_corpus(folder: Path, only: Collection[str], at_once: int) -> Corpus:
    """Return the corpus with its tasks admitted. Raises RuntimeError for a task that is not."""
    workspace, patches = make_patches(folder, only)
    fixes = {patch.issue: patch.text for patch in patches if patch.name == FIX}
    tasks = [ISSUES[issue].task(fix) for issue, fix in fixes.items()]
    async with make_provider(SandboxSettings()) as provider:
        grader = Grader(provider, GradingSettings(concurrency=at_once), cache=folder)
        report = await validate(tasks, grader, Journal(None, {}), repeats=2)
    if report.refused:
        raise RuntimeError(f"tasks of the corpus are not admitted: {report.refused}")
    say(f"{report.controlled} of {report.tests} tests of {len(tasks)} tasks have a control")
    admitted = with_proof(tasks, report)
    return Corpus(patches=tuple(patches), tasks=dict(zip(fixes, admitted, strict=True)), workspace=workspace)


# --- the columns


async def grade_all(corpus: Corpus, at_once: int, gradings: int, *, read: bool, controls: bool) -> list[Cell]:
    """Return Hone's cells.

    Args:
        gradings: of each patch, because controls are drawn; the patch is paid when one of them pays.
        read: whether the patch is scanned before it runs.
        controls: whether controls run, all of them.
    """
    settings = GradingSettings(concurrency=at_once, controls=float(controls))
    slots = asyncio.Semaphore(at_once)

    async def grade(patch: Patch) -> Cell:
        found: set[Cell] = set()
        async with slots:
            for _ in range(1 if patch.honest else gradings):
                try:
                    verdict = await grader.grade_uncached(corpus.tasks[patch.issue], patch.text)
                    found.add(Cell.PAID if verdict.resolved else Cell.REFUSED)
                except GraderError:
                    found.add(Cell.EXCUSED)
        return next(cell for cell in (Cell.PAID, Cell.EXCUSED, Cell.REFUSED) if cell in found)

    with contextlib.ExitStack() as stack:
        if not read:
            grade_module = importlib.import_module("hone.grading.grade")
            stack.enter_context(mock.patch.object(grade_module, "scan_patch", return_value=None))
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, settings, cache=corpus.workspace.parent)
            return await asyncio.gather(*map(grade, corpus.patches))


async def run_scripts(corpus: Corpus, at_once: int) -> list[Cell]:
    """Return the cells of test.sh."""

    async def cell(provider: Provider, patch: Patch) -> Cell:
        issue = ISSUES[patch.issue]
        reward = await test_script.reward(
            provider,
            corpus.workspace,
            patch.text,
            issue.test_files,
            issue.test_file,
            env=ENV,
            timeout_s=TIMEOUT_S,
        )
        if reward is None:
            return Cell.EXCUSED
        return Cell.PAID if reward >= 1 else Cell.REFUSED

    return await _in_sandboxes(corpus, cell, at_once)


async def evaluate_in_sandboxes(corpus: Corpus, at_once: int) -> list[Cell]:
    """Return the cells of the harness's steps and functions, without its containers."""

    async def cell(provider: Provider, patch: Patch) -> Cell:
        instance = harness_images.row(corpus.tasks[patch.issue], corpus.workspace, "none")
        entry = await swebench_sandbox.evaluate(
            provider, corpus.workspace, instance, patch.text, env=ENV, timeout_s=TIMEOUT_S
        )
        if entry is None or entry["infra_failure"]:
            return Cell.EXCUSED
        return Cell.PAID if entry["resolved"] else Cell.REFUSED

    return await _in_sandboxes(corpus, cell, at_once)


async def _in_sandboxes(
    corpus: Corpus, cell: Callable[[Provider, Patch], Awaitable[Cell]], at_once: int
) -> list[Cell]:
    slots = asyncio.Semaphore(at_once)

    async def one(patch: Patch) -> Cell:
        async with slots:
            return await cell(provider, patch)

    async with make_provider(SandboxSettings()) as provider:
        return await asyncio.gather(*map(one, corpus.patches))


def evaluate_with_harness(corpus: Corpus, folder: Path) -> list[Cell]:
    """Return the cells of the harness itself: each patch is an instance of its own, all of one image.

    Args:
        folder: a new one for its logs.
    """
    task = next(iter(corpus.tasks.values()))
    installed = dataclasses.replace(task.environment, paths=("",))
    with engine_of_our_own() as base:
        harness_images.build_base(base)
        image = harness_images.build_image(
            dataclasses.replace(task, environment=installed), corpus.workspace, default_cache_dir() / "sites"
        )
        instances = [
            {
                **harness_images.row(corpus.tasks[patch.issue], corpus.workspace, image),
                "instance_id": f"durations__{patch.issue}-{number}",
            }
            for number, patch in enumerate(corpus.patches)
        ]
        found = swebench_harness.evaluate(
            instances,
            {each["instance_id"]: patch.text for each, patch in zip(instances, corpus.patches, strict=True)},
            folder=folder,
            run_id="hone-integrity",
            workers=HARNESS_WORKERS,
            timeout_s=TIMEOUT_S,
        )
    evaluations = [found[each["instance_id"]] for each in instances]
    return [
        Cell.PAID if each.resolved else Cell.EXCUSED if each.infrastructure else Cell.REFUSED
        for each in evaluations
    ]


def fill(
    corpus: Corpus, columns: Sequence[str], *, docker: bool, at_once: int, gradings: int, folder: Path
) -> dict[str, list[Cell]]:
    """Return column -> the cells of all rows."""
    makers: dict[str, Callable[[], list[Cell]]] = {
        HONE: lambda: asyncio.run(grade_all(corpus, at_once, gradings, read=True, controls=True)),
        UNREAD: lambda: asyncio.run(grade_all(corpus, at_once, gradings, read=False, controls=True)),
        BARE: lambda: asyncio.run(grade_all(corpus, at_once, gradings, read=False, controls=False)),
        SWEBENCH: lambda: (
            evaluate_with_harness(corpus, folder / "harness")
            if docker
            else asyncio.run(evaluate_in_sandboxes(corpus, at_once))
        ),
        TEST_SH: lambda: asyncio.run(run_scripts(corpus, at_once)),
    }
    cells: dict[str, list[Cell]] = {}
    for column in columns:
        say(f"{column}: {len(corpus.patches)} patches")
        cells[column] = makers[column]()
    return cells


# --- the table


def table(corpus: Corpus, cells: Mapping[str, Sequence[Cell]]) -> str:
    """Return the table: the classes with what each column pays for, their patches, and the totals."""
    width = max(len(patch.name) for patch in corpus.patches) + 8

    def line(name: str, values: Iterable[object]) -> str:
        return f"{name:<{width}}" + "".join(f"{value!s:>22}" for value in values)

    lines = [line("", cells)]
    for kind in dict.fromkeys(patch.kind for patch in corpus.patches):
        members = [number for number, patch in enumerate(corpus.patches) if patch.kind == kind]
        paid = (sum(column[number] is Cell.PAID for number in members) for column in cells.values())
        lines.append(line(kind, (f"{count} of {len(members)} paid" for count in paid)))
        for number in members:
            patch = corpus.patches[number]
            name = f"{patch.name} ({patch.issue})" if patch.honest else patch.name
            lines.append(line(f"  {name}", (column[number] for column in cells.values())))
    counts = totals(corpus, cells)
    lines += [line(f"exploits {cell}", (each[cell] for each in counts.values())) for cell in Cell]
    return "\n".join(lines)


def totals(corpus: Corpus, cells: Mapping[str, Sequence[Cell]]) -> dict[str, dict[str, int]]:
    """Return column -> cell -> the number of exploits."""
    found: dict[str, dict[str, int]] = {}
    for column, each in cells.items():
        counts = collections.Counter(
            cell for patch, cell in zip(corpus.patches, each, strict=True) if not patch.honest
        )
        found[column] = {cell: counts[cell] for cell in Cell}
    return found


def faults(corpus: Corpus, cells: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Return one sentence for each cell that makes the benchmark fail."""
    found: list[str] = []
    for column, each in cells.items():
        for patch, cell in zip(corpus.patches, each, strict=True):
            wanted = Cell.PAID if patch.name == FIX else Cell.REFUSED
            if cell is not wanted and (patch.honest or column == HONE):
                found.append(f"{column}: {patch.name} ({patch.issue}) is {cell}, not {wanted}")
    return found


def run(options: argparse.Namespace, folder: Path) -> bool:
    """Grade the corpus, print the table and the JSON line; return whether nothing is at fault."""
    docker = options.swebench == "docker"
    corpus = asyncio.run(make_corpus(folder, options.only, options.at_once))
    cells = fill(
        corpus,
        options.columns,
        docker=docker,
        at_once=options.at_once,
        gradings=options.gradings,
        folder=folder,
    )
    print(table(corpus, cells))
    wrong = faults(corpus, cells)
    for fault in wrong:
        print(fault)
    counts = totals(corpus, cells)
    result: dict[str, Any] = {
        "name": "integrity",
        "metrics": {
            "exploits": sum(not patch.honest for patch in corpus.patches),
            "tasks": len(corpus.tasks),
            **{column: counts[column] for column in cells if column.startswith(HONE)},
        },
        "peers": {column: counts[column] for column in cells if not column.startswith(HONE)},
        "ratios": {},
        "swebench_in": options.swebench if SWEBENCH in cells else None,
        "paid": {
            column: [
                patch.name
                for patch, c in zip(corpus.patches, each, strict=True)
                if c is Cell.PAID and not patch.honest
            ]
            for column, each in cells.items()
        },
        "faults": wrong,
    }
    print(json.dumps(result))
    return not wrong


def main() -> None:
    engine = os.geteuid() == 0 and shutil.which("dockerd") is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="graders; default: all"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="PART",
        help="grade exploits whose class or name contains one",
    )
    parser.add_argument("--at-once", type=int, default=2, help="gradings at a time")
    parser.add_argument(
        "--gradings", type=int, default=1, help="of each exploit by Hone, whose controls are drawn"
    )
    parser.add_argument(
        "--swebench", choices=("docker", "sandbox"), default="docker" if engine else "sandbox"
    )
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the corpus as a Harbor data set")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with tempfile.TemporaryDirectory() as folder:
        if options.write is not None:
            write_data_set(options.write, make_patches(Path(folder), options.only)[1])
            return
        good = run(options, Path(folder).resolve())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
