"""Rows with faults, graded for real: only the fix resolves a task, whatever is wrong with its row."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from hone.cli.import_report import assess_rows
from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.diffs import file_diff
from hone.tasks.files import import_rows
from hone.tasks.formats import FORMATS
from hone.types import Task
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, git
from tests.services.image import unpack_base
from tests.tasks.faults import NEW_TEST, VACUOUS, base_rows, faulty_rows

pytestmark = [pytest.mark.full, pytest.mark.sandbox]

GRADED = 12  # tasks of each format
NOTE = (
    "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+a note\n"
)


FIXES = {  # where rows have none
    "debugging": file_diff("f_code.py", "def f():\n    return 1\n", "def f():\n    return 2\n"),
    "r2e-gym": GOLD,
    "harbor": (
        "diff --git a/app/answer.txt b/app/answer.txt\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/app/answer.txt\n@@ -0,0 +1 @@\n+42\n"
    ),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A root file system with the repository and R2E-Gym's hidden tests; the commit of the repository."""
    root = tmp_path_factory.mktemp("image")
    unpack_base(root)
    testbed = root / "testbed"
    for path, text in {
        "calc/__init__.py": BUGGY,
        "tests/__init__.py": "",
        "tests/test_calc.py": OLD_TEST,
        "tests/test_new.py": NEW_TEST,
        "../r2e_tests/test_1.py": NEW_TEST,
    }.items():
        (testbed / path).parent.mkdir(parents=True, exist_ok=True)
        (testbed / path).write_text(text)
    (root / "usr" / "bin" / "python").symlink_to("python3")
    git(testbed, "init", "-q", "--initial-branch=main")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "Base")
    (testbed / ".venv" / "bin").mkdir(parents=True)
    (testbed / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (testbed / ".git" / "info" / "exclude").write_text(".venv\nr2e_tests\n")
    return root, git(testbed, "rev-parse", "HEAD")


def place(task: Task, root: Path) -> Task:
    """Return the task, in the root file system instead of an image, with a short time limit."""
    checks = dataclasses.replace(task.checks, timeout_s=20.0)
    environment = task.environment
    if environment.image.startswith("docker://"):
        environment = dataclasses.replace(environment, image=f"rootfs:{root}")
    return dataclasses.replace(task, environment=environment, checks=checks)


async def grade_all(tasks: list[tuple[Task, str]], cache: Path) -> list[bool | None]:
    """Return whether each patch resolves its task; None without a verdict."""
    slots = asyncio.Semaphore(2)
    async with make_provider(SandboxSettings()) as provider:
        grader = Grader(provider, GradingSettings().of_evaluation(), cache=cache)

        async def one(task: Task, patch: str) -> bool | None:
            async with slots:
                try:
                    return (await grader.grade_uncached(task, patch)).resolved
                except GraderError:
                    return None

        return await asyncio.gather(*(one(task, patch) for task, patch in tasks))


@pytest.mark.parametrize("name", list(FORMATS))
def test_sound_row_is_resolved_by_its_fix_alone(name: str, image: tuple[Path, str], tmp_path: Path) -> None:
    root, commit = image
    _, (task,) = assess_rows(import_rows([base_rows(commit)[name]], FORMATS[name]))
    task = place(task, root)
    gold = task.checks.gold_patch or FIXES.get(name, GOLD)
    assert asyncio.run(grade_all([(task, gold), (task, NOTE)], tmp_path)) == [True, False]


@pytest.mark.parametrize("name", list(FORMATS))
def test_faulty_row_is_never_resolved_by_accident(name: str, image: tuple[Path, str], tmp_path: Path) -> None:
    root, commit = image
    faulty = list(faulty_rows(name, commit, 200, seed=2))
    _, tasks = assess_rows(import_rows((row for _, row in faulty), FORMATS[name]))
    fault_of = {f"faulty-{number}": fault for number, (fault, _) in enumerate(faulty)}
    chosen: dict[str, Task] = {}  # one of each fault, then more
    for task in tasks:
        chosen.setdefault(fault_of.get(task.id, task.id), place(task, root))
    sample = list(chosen.values())[:GRADED]
    jobs = [
        (task, patch) for task in sample for patch in (NOTE, task.checks.gold_patch or FIXES.get(name, GOLD))
    ]
    verdicts = asyncio.run(grade_all(jobs, tmp_path))
    notes, fixes = verdicts[::2], verdicts[1::2]
    for task, noted in zip(sample, notes, strict=True):
        assert not noted or fault_of.get(task.id) == VACUOUS, (task.id, fault_of.get(task.id))
    assert Counter(fixes)[True] > 0  # faults that change nothing of the grading
