"""Tests that change between runs, and what they change with."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hone.curate.flaky import describe, find_causes
from hone.curate.journal import Journal
from hone.curate.record import Record
from hone.curate.validate import validate
from hone.grading.grade import Grader
from hone.grading.settings import GradingSettings
from hone.grading.variation import FACTORS, Variation, variation_of
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Task, TestStatus, Verdict
from tests.curate.mutation.offered import dedent
from tests.grading.example import make_task

GOLD = dedent("""
    diff --git a/stats.py b/stats.py
    --- a/stats.py
    +++ b/stats.py
    @@ -1,2 +1,2 @@
     def add(a, b):
    -    return a - b
    +    return a + b
""")
HIDDEN = {
    "hash_seed": dedent("""
        import subprocess
        import sys

        from stats import add

        def test_add():
            assert add(1, 2) == 3

        def test_depends_on_the_hash_seed():
            command = [sys.executable, "-c", "print(hash('text'))"]
            other = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
            assert hash("text") == int(other.stdout)
    """),
    "order": dedent("""
        from stats import add

        before = []

        def test_add():
            before.append(1)
            assert add(1, 2) == 3

        def test_depends_on_the_first_test():
            assert before
    """),
    "timezone": dedent("""
        import time

        from stats import add

        def test_add():
            assert add(1, 2) == 3

        def test_depends_on_the_time_zone():
            assert time.localtime(1.7e9).tm_gmtoff != 20700  # that of Nepal
    """),
    "locale": dedent("""
        import locale

        from stats import add

        def test_add():
            assert add(1, 2) == 3

        def test_depends_on_the_locale():
            assert "UTF-8" in locale.setlocale(locale.LC_ALL, "")
    """),
    "processes": dedent("""
        from stats import add

        def test_add():
            assert add(1, 2) == 3

        def test_depends_on_all_tests_in_one_process(request):
            names = {item.name for item in request.session.items}
            assert {"test_add", "test_depends_on_all_tests_in_one_process"} <= names
    """),
    "chance": dedent("""
        import pathlib
        import random

        from stats import add

        def test_add():
            assert add(1, 2) == 3

        def test_depends_on_chance():
            assert random.SystemRandom().random() < 0.5
    """),
}


def flaky_task(cause: str) -> Task:
    text = HIDDEN[cause]
    names = [line.partition("(")[0].removeprefix("def ") for line in text.splitlines() if "def test" in line]
    tests = [f"tests/test_hidden.py::{name}" for name in names]
    return dataclasses.replace(
        make_task(
            fail_to_pass=tuple(tests[:1]),
            pass_to_pass=tuple(tests[1:]),
            test_files={"tests/test_hidden.py": text},
            gold_patch=GOLD,
        ),
        id=cause,
    )


def admit(tasks: Sequence[Task], repeats: int, folder: Path) -> dict[str, Record]:
    async def run() -> dict[str, Record]:
        async with make_provider(SandboxSettings(state_dir=folder / "state")) as provider:
            grader = Grader(provider, GradingSettings(concurrency=2), cache=folder / "workspaces")
            report = await validate(tasks, grader, Journal(None, {}), repeats=repeats, controls=False)
            return {record.task_id: record for record in report.records()}

    return asyncio.run(run())


@pytest.mark.sandbox
def test_test_that_needs_another_before_it_is_refused(tmp_path: Path) -> None:
    record = admit([flaky_task("order")], 2, tmp_path)["order"]
    assert record.flaky == {"tests/test_hidden.py::test_depends_on_the_first_test": "order"}
    assert record.detail is not None
    assert record.detail.endswith("test_depends_on_the_first_test changes with the order of tests")
    assert record.varied == ("hash_seed", "order", "timezone", "locale")


@pytest.mark.sandbox
@pytest.mark.full
def test_each_cause_is_found(tmp_path: Path) -> None:
    records = admit([flaky_task(cause) for cause in FACTORS], 3, tmp_path)
    assert {name: list(record.flaky.values()) for name, record in records.items()} == {
        cause: [cause] for cause in FACTORS
    }


def verdict_of(statuses: dict[str, str]) -> Verdict:
    tests = {test: TestStatus(status) for test, status in statuses.items()}
    return Verdict(resolved=set(statuses.values()) == {"passed"}, tests=tests, score=0.0)


def causes_of(status: Callable[[Variation], str], repeats: int = 3) -> tuple[dict[str, str], int]:
    """Return the causes of a suite of one test, and the number of its reruns."""
    runs = 0

    async def run(variation: Variation) -> Verdict:
        nonlocal runs
        runs += 1
        return verdict_of({"t": status(variation)})

    verdicts = [verdict_of({"t": status(variation_of(number))}) for number in range(repeats)]
    return asyncio.run(find_causes(run, verdicts)), runs


@pytest.mark.parametrize("factor", FACTORS)
def test_single_factor_is_named(factor: str) -> None:
    causes, _ = causes_of(lambda variation: "failed" if factor in variation.factors else "passed")
    assert causes == {"t": factor}


def test_stable_tests_are_not_run_again() -> None:
    assert causes_of(lambda variation: "passed") == ({}, 0)


def test_test_that_needs_two_factors_changes_by_chance() -> None:
    two = {"order", "timezone"}
    causes, _ = causes_of(lambda variation: "failed" if two <= {*variation.factors} else "passed")
    assert causes == {"t": "chance"}


def test_test_that_changes_without_a_factor_changes_by_chance() -> None:
    statuses = iter(["passed", "failed", "passed", "failed", *["passed"] * 20])
    assert causes_of(lambda variation: next(statuses))[0] == {"t": "chance"}


def test_random_tests_are_rarely_blamed_on_a_factor() -> None:
    chance = random.Random(0)
    named = 0
    for _ in range(300):
        causes, _ = causes_of(lambda variation: chance.choice(["passed", "failed"]))
        named += causes.get("t", "chance") != "chance"
    assert named / 300 < 0.1


def test_sentence_groups_tests_by_cause() -> None:
    assert describe({"a": "order", "b": "chance", "c": "order"}) == (
        "a, c change with the order of tests; b changes from run to run"
    )
