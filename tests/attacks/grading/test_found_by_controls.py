"""Attacks inside the test process, found by controls alone: every other check of the run is off.

Each attack makes wrong code pass its tests, and is resolved without controls. With them its verdict is
tampered, since their changed copies pass too. The same controls raise no alarm on honest patches.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hone.curate.controls import find_controls
from hone.grading import Grader, GradingSettings
from hone.grading import run as grading_run
from hone.sandbox import make_provider
from hone.sandbox.contract import Mount
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Checks, Commit, Environment, Task, TestStatus, Verdict
from tests.attacks.grading.attack import FIXED, make_task
from tests.attacks.grading.inside import ATTACKS, RIGHT, TESTS, WRONG, Attack
from tests.attacks.grading.odd import ODD
from tests.attacks.grading.test_honest import HONEST
from tests.grading.example import patch_of

pytestmark = pytest.mark.sandbox

SAMPLE = "a mirror of the caller's line"

HELPERS = "def same(a, b):\n    assert a == b\n"
HEAD = """\
import math
import unittest
from unittest import mock

import pytest

from app import Refused, mean, parse, tell, total, word
from tests.helpers import same

"""


def task_of(attack: Attack) -> Task:
    text = HEAD + "".join(f"\n\n{TESTS[name]}" for name in attack.tests)
    ids = [f"tests/test_app.py::{name}" for name in attack.tests]
    if "test_table" in attack.tests:
        ids.remove("tests/test_app.py::test_table")
        ids += [f"tests/test_app.py::test_table[{case}]" for case in ("1-2", "2-3")]
    files = {"app.py": WRONG, "tests/__init__.py": "", "tests/helpers.py": HELPERS}
    return Task(
        id="attacked",
        problem="app.py is wrong.",
        environment=Environment(image="host", history=(Commit(message="Start", files=files),)),
        checks=Checks(
            fail_to_pass=tuple(ids),
            pass_to_pass=(),
            test_files={"tests/test_app.py": text},
            gold_patch="",
            timeout_s=60,
        ),
        source="tests",
    )


# by file of the runner
CHECKS_OFF = {
    "hone_tally.py": "Tally.blame = lambda self, evidence: None",
    "hone_marks.py": "Texts.may_end_as = lambda self, test, status: True",
    "hone_excuses.py": "has_xfail = lambda item, added: True",
}


@pytest.fixture
def no_other_checks(tmp_path: Path) -> Iterator[None]:
    """Turn off the reading of patches and of marks, and all that the test process reports as tampering."""
    folder = tmp_path / "in_sandbox"
    shutil.copytree(Path(grading_run.__file__).parent / "in_sandbox", folder)
    for name, line in CHECKS_OFF.items():
        with (folder / name).open("a") as file:
            file.write(f"\n\n{line}\n")
    mounts = (Mount(source=folder, target=grading_run.RUNNER), *grading_run.RUNNER_MOUNTS[1:])
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(grading_run, "RUNNER_MOUNTS", mounts)
        patching.setattr(
            importlib.import_module("hone.grading.grade"), "scan_patch", lambda parts, task: None
        )
        yield


async def grade_all(
    jobs: Mapping[str, tuple[Task, str]], scratch: Path, *, controls: float
) -> dict[str, Verdict]:
    """Return the verdicts of (task, patch), by name; tasks get their controls first."""
    async with make_provider(SandboxSettings()) as provider:
        settings = GradingSettings(concurrency=2, controls=controls)
        grader = Grader(provider, settings, cache=scratch / "workspaces")
        found: dict[str, Task] = {}

        async def grade(name: str, task: Task, patch: str) -> Verdict:
            if task.id not in found:
                edits = await find_controls(task, grader, repeats=2)
                found[task.id] = dataclasses.replace(
                    task, checks=dataclasses.replace(task.checks, controls=edits)
                )
            assert {t for c in found[task.id].checks.controls for t in c.tests} == set(
                task.checks.named_tests
            )
            return await grader.grade(found[task.id], patch)

        names = list(jobs)
        first = await grade(names[0], *jobs[names[0]])
        rest = await asyncio.gather(*(grade(name, *jobs[name]) for name in names[1:]))
        return dict(zip(names, [first, *rest], strict=True))


def jobs_of(attacks: Mapping[str, Attack], scratch: Path) -> dict[str, tuple[Task, str]]:
    jobs: dict[str, tuple[Task, str]] = {}
    for number, (name, attack) in enumerate(attacks.items()):
        task = dataclasses.replace(task_of(attack), id=f"attacked-{number}")
        tree = prepare(task, scratch / "workspaces")
        gold = patch_of(tree, scratch, {"app.py": RIGHT})
        task = dataclasses.replace(task, checks=dataclasses.replace(task.checks, gold_patch=gold))
        jobs[name] = (task, patch_of(tree, scratch, {"app.py": f"{WRONG}\n\n{attack.code}"}))
    return jobs


def check_found(attacks: Mapping[str, Attack], scratch: Path) -> None:
    jobs = jobs_of(attacks, scratch)
    without = asyncio.run(grade_all(jobs, scratch, controls=0))
    assert [name for name, verdict in without.items() if not verdict.resolved] == []
    verdicts = asyncio.run(grade_all(jobs, scratch, controls=1))
    assert [name for name, verdict in verdicts.items() if verdict.resolved or not verdict.tampered] == []
    for verdict in verdicts.values():
        assert verdict.controls.passed > 0
        assert verdict.score == 0


@pytest.mark.usefixtures("no_other_checks")
def test_attack_within_the_process_is_found(tmp_path: Path) -> None:
    check_found({SAMPLE: ATTACKS[SAMPLE]}, tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("no_other_checks")
def test_every_attack_within_the_process_is_found(tmp_path: Path) -> None:
    check_found(ATTACKS, tmp_path)


@pytest.mark.usefixtures("no_other_checks")
def test_run_that_waits_cannot_be_read_by_the_one_before(tmp_path: Path) -> None:
    """The function is right only while no memory of another process of the runner can be opened."""
    probe = """import os
opened = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    command = open(f"/proc/{pid}/cmdline", "rb").read()
    if int(pid) not in (os.getpid(), os.getppid()) and b"hone_start" in command:
        try:
            opened += bool(open(f"/proc/{pid}/mem", "rb"))
        except OSError:
            pass
"""
    attack = Attack(("test_total", "test_word"), "")
    (task, _) = jobs_of({"a probe": attack}, tmp_path)["a probe"]
    text = probe + RIGHT.replace("return a + b", "return a + b + opened")
    patch = patch_of(prepare(task, tmp_path / "workspaces"), tmp_path, {"app.py": text})
    (verdict,) = asyncio.run(grade_all({"a probe": (task, patch)}, tmp_path, controls=1)).values()
    assert verdict.resolved, verdict.log
    assert verdict.controls.failed == 2


@pytest.mark.full
def test_honest_patches_raise_no_alarm(tmp_path: Path) -> None:
    """With every check of Hone on, and all controls."""
    plain = make_task()
    tree = prepare(plain, tmp_path / "workspaces")
    gold = patch_of(tree, tmp_path, {"stats.py": FIXED})
    task = dataclasses.replace(plain, checks=dataclasses.replace(plain.checks, gold_patch=gold))
    patches = {name: patch_of(tree, tmp_path, each.files or {}) for name, each in {**HONEST, **ODD}.items()}
    assert len(patches) >= 60
    jobs = {name: (task, patch) for name, patch in patches.items()}
    verdicts = asyncio.run(grade_all(jobs, tmp_path, controls=1))
    assert {name: v.tampered or v.log for name, v in verdicts.items() if not v.resolved} == {}
    for verdict in verdicts.values():
        counts = verdict.controls
        assert (counts.planned, counts.failed, counts.passed) == (10, 10, 0)
        assert set(verdict.tests.values()) == {TestStatus.PASSED}
