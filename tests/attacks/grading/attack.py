"""The attacked task, and helpers that grade attacks in real sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hone.grading import Grader, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Checks, Commit, Environment, Task, Verdict
from tests.grading.example import patch_of

Files = Mapping[str, str | None]
LIMIT_S = 120.0  # that an attack which ends by itself must not reach on a busy machine

BUGGY = """def add(a, b):
    return a - b


def double(a):
    return a * 2


def positive(a):
    return a
"""
FIXED = BUGGY.replace("a - b", "a + b").replace(
    "    return a\n", "    if a < 0:\n        raise ValueError(a)\n    return a\n"
)
HELPERS = """EXPECTED = {"sum": 4}


def same(a, b):
    assert a == b, (a, b)
"""
VISIBLE = "from stats import double\n\n\ndef test_double():\n    assert double(4) == 8\n"
HIDDEN = """import unittest

import pytest

from stats import add, double, positive
from tests.helpers import EXPECTED, same


def test_add():
    assert add(1, 2) == 3


def test_add_lists():
    assert [add(1, 2), add(0, 0)] == [3, 0]


def test_nothing():
    assert add(1, 0) == 1


def test_double_again():
    assert double(3) == 6


def test_refused():
    with pytest.raises(ValueError):
        positive(-1)


def test_expected():
    assert add(2, 2) == EXPECTED["sum"]


def test_same():
    same(add(1, 1), 2)


class Case(unittest.TestCase):
    def test_case(self):
        self.assertEqual(add(7, 2), 9)
"""
MORE = "from stats import add\n\n\ndef test_add_more():\n    assert add(5, 5) == 10\n"
IN_HIDDEN = ("test_add", "test_add_lists", "test_refused", "test_expected", "test_same", "Case::test_case")
KEPT = ("test_nothing", "test_double_again")
TRIVIAL = "".join(f"def {name}(): pass\n" for name in (*IN_HIDDEN[:-1], *KEPT))
TRIVIAL += "class Case:\n    def test_case(self): pass\n"


def make_task(*only: str, timeout_s: float = LIMIT_S) -> Task:
    """Return a task with seven failing and three passing tests; `only` selects the failing ones by name.

    With fewer tests to win, an attack of one kind can win the whole task.
    """
    wanted = [f"tests/test_hidden.py::{name}" for name in IN_HIDDEN] + ["tests/test_more.py::test_add_more"]
    return Task(
        id="attacked",
        problem="add(1, 2) gives -1, not 3; positive(-1) is not refused.",
        environment=Environment(
            image="host",
            history=(
                Commit(
                    message="Tests",
                    files={
                        "stats.py": BUGGY,
                        "tests/__init__.py": "",
                        "tests/helpers.py": HELPERS,
                        "tests/test_visible.py": VISIBLE,
                        "data.txt": "one\ntwo\n",
                    },
                ),
            ),
        ),
        checks=Checks(
            fail_to_pass=tuple(test for test in wanted if not only or test.endswith(only)),
            pass_to_pass=(
                *(f"tests/test_hidden.py::{name}" for name in KEPT),
                "tests/test_visible.py::test_double",
            ),
            test_files={"tests/test_hidden.py": HIDDEN, "tests/test_more.py": MORE},
            gold_patch="",
            timeout_s=timeout_s,
        ),
        source="tests",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    files: Files | None = None  # the patched tree, as changes of the task's
    patch: str | None = None  # the patch itself, instead of `files`
    task: Task = dataclasses.field(default_factory=make_task)


def at_import(code: str, *only: str, timeout_s: float = LIMIT_S) -> Attack:
    """Return an attack that runs `code` when stats.py is imported."""
    return Attack(files={"stats.py": f"{code}\n\n{BUGGY}"}, task=make_task(*only, timeout_s=timeout_s))


def at_call(code: str, *only: str, timeout_s: float = LIMIT_S) -> Attack:
    """Return an attack in which add() runs `code` instead of returning the right answer."""
    text = BUGGY.replace("return a - b", code)
    return Attack(files={"stats.py": text}, task=make_task(*only, timeout_s=timeout_s))


def grade_all(
    attacks: Mapping[str, Attack], scratch: Path, *, scan: bool, concurrency: int = 3
) -> dict[str, Verdict]:
    """Grade patches in real sandboxes; without `scan`, no patch is scanned before it runs."""
    cache = scratch / "workspaces"

    async def run() -> list[Verdict]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(concurrency=concurrency, slack_s=20), cache=cache)
            patches = {name: text_of(attack, cache, scratch) for name, attack in attacks.items()}
            return await asyncio.gather(
                *(grader.grade(attack.task, patches[name]) for name, attack in attacks.items())
            )

    with pytest.MonkeyPatch.context() as patching:
        if not scan:
            patching.setattr(
                importlib.import_module("hone.grading.grade"), "scan_patch", lambda parts, task: None
            )
        return dict(zip(attacks, asyncio.run(run()), strict=True))


def text_of(attack: Attack, cache: Path, scratch: Path) -> str:
    """Return the attack's patch."""
    if attack.patch is not None:
        return attack.patch
    assert attack.files is not None
    return patch_of(prepare(attack.task, cache), scratch, attack.files)


def some_or_all(some: Collection[str], every: Collection[str]) -> pytest.MarkDecorator:
    """Parametrize `names`: `make test` takes some, of each kind one; `make test-full` takes every one."""
    assert set(some) <= set(every)
    return pytest.mark.parametrize(
        "names",
        [pytest.param(set(some), id="some"), pytest.param(set(every), id="all", marks=pytest.mark.full)],
    )


def check_attacks(
    attacks: Mapping[str, Attack],
    scratch: Path,
    *,
    scan_only: Collection[str] = (),
    caught: Collection[str] = (),
) -> dict[str, Verdict]:
    """Check that no attack is resolved; return the verdicts without the scan.

    The scan only refuses, so only attacks that win without it are graded with it.

    Args:
        scan_only: attacks that only the scan stops.
        caught: attacks whose run shows evidence of tampering.
    """
    verdicts = grade_all(attacks, scratch, scan=False)
    won = {name: attacks[name] for name, verdict in verdicts.items() if verdict.resolved}
    assert set(won) == set(scan_only), {name: verdicts[name].log for name in won}
    evidence = {name: verdict.tampered for name, verdict in verdicts.items() if verdict.tampered is not None}
    assert set(evidence) == set(caught), evidence
    for name, verdict in grade_all(won, scratch, scan=True).items() if won else ():
        assert not verdict.resolved, name
        assert verdict.tampered, name
    return verdicts
