"""Runs that differ from a grading: what differs, and how parts of a run are put together."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.in_sandbox.hone_order import ordered
from hone.grading.plan import compile_plan
from hone.grading.run import ENV, TestRun
from hone.grading.variation import FACTORS, REVERSED, Variation, factors_of, merge, variation_of, vary_script
from hone.sandbox.contract import Limits
from hone.types import Environment, Task, TestStatus
from tests.grading.example import make_task

PASSED, FAILED, MISSING = TestStatus.PASSED, TestStatus.FAILED, TestStatus.MISSING
SCRIPT = "#!/bin/bash\n{before}\n: '>>>>> Start Test Output'\n{test}\n: '>>>>> End Test Output'\n"


@dataclass(frozen=True)
class Item:
    nodeid: str


names = st.sampled_from(["a", "b", "c"])
ids = st.one_of(
    st.tuples(names, names, names).map("::".join),
    st.tuples(names, names).map("::".join),
    st.tuples(names, names, names).map(lambda parts: f"{parts[0]}::{parts[1]}[{parts[2]}::x]"),
)


@given(st.lists(ids, unique=True), st.integers(0, 9))
def test_every_order_keeps_every_test(tests: list[str], order: int) -> None:
    items = [Item(test) for test in tests]
    found = ordered(items, order)
    assert sorted(found, key=lambda item: item.nodeid) == sorted(items, key=lambda item: item.nodeid)
    assert found == ordered(items, order)


@given(st.lists(ids, unique=True), st.integers(2, 9))
def test_shuffled_tests_of_a_file_stay_together(tests: list[str], order: int) -> None:
    files = [item.nodeid.split("::")[0] for item in ordered([Item(test) for test in tests], order)]
    changes = sum(one != other for one, other in itertools.pairwise(files))
    assert changes == max(0, len(set(files)) - 1)


def test_second_run_reverses_every_pair_of_tests() -> None:
    items = [Item(f"a::{number}") for number in range(4)]
    assert variation_of(1).order == REVERSED
    assert ordered(items, REVERSED) == items[::-1]


def test_further_orders_differ_from_each_other() -> None:
    items = [Item(f"a::{number}") for number in range(20)]
    orders = {tuple(ordered(items, variation_of(run).order)) for run in (0, 1, 3, 5, 7)}
    assert len(orders) == 5


def test_first_run_is_a_grading_and_three_vary_every_factor() -> None:
    assert variation_of(0) == Variation()
    plan = compile_plan(make_task())
    assert factors_of(plan, 1) == ()
    assert factors_of(plan, 3) == tuple(FACTORS)


@pytest.mark.parametrize("factor", FACTORS)
def test_variation_of_one_factor_has_that_factor_alone(factor: str) -> None:
    run = next(run for run in range(3) if factor in variation_of(run).factors)
    assert variation_of(run).only(factor).factors == (factor,)


def scripted(test: str, parser: str = "parse_log_pytest", before: str = "true") -> Task:
    task = make_task(script=SCRIPT.format(before=before, test=test), parser=parser)
    return dataclasses.replace(task, environment=Environment(image="docker://x", repo="o/p"))


def test_script_that_runs_whole_varies_in_its_variables_only() -> None:
    plan = compile_plan(scripted("python runtests.py", "parse_log_django"))
    assert factors_of(plan, 3) == ("hash_seed", "timezone", "locale")


@pytest.mark.parametrize("test", ["pytest tests/test_hidden.py", "python runtests.py"])
def test_variables_of_a_script_are_its_own_before_those_of_a_variation(test: str) -> None:
    plan = compile_plan(scripted(test, "parse_log_django", before="export TZ=UTC"))
    varied = vary_script(plan, variation_of(1)).script
    assert varied is not None
    found = subprocess.run(
        ["bash", "-c", f"{varied.before}\necho $TZ $LC_ALL $PYTHONHASHSEED"],
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "UTC C 1\n"


def test_processes_at_once_have_the_memory_of_each() -> None:
    limits = Limits(memory_mib=100, pids=10)
    assert Variation().limits(limits) == limits
    both = Variation(processes=2).limits(limits)
    assert (both.memory_mib, both.pids, both.cpus) == (200, 20, limits.cpus)
    assert Variation(processes=4).limits(Limits(memory_mib=1 << 24)).memory_mib == 1 << 24


def run(statuses: dict[str, TestStatus], **fields: object) -> TestRun:
    return dataclasses.replace(TestRun(statuses=statuses), **fields)


@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([{"a": PASSED, "b": MISSING}, {"a": MISSING, "b": FAILED}], {"a": PASSED, "b": FAILED}),
        ([{"a": PASSED}, {"a": FAILED}], {"a": FAILED}),  # runs of one function under its bare name
        ([{"a": FAILED}, {"a": PASSED}], {"a": FAILED}),
        ([{"a": MISSING}, {"a": MISSING}], {"a": MISSING}),
        ([{"a": PASSED}, {"b": PASSED}], {"a": PASSED, "b": PASSED}),
    ],
)
def test_each_test_counts_where_it_ran(
    parts: Sequence[dict[str, TestStatus]], statuses: dict[str, TestStatus]
) -> None:
    assert merge([run(part) for part in parts]).statuses == statuses


def test_a_part_that_did_not_finish_or_was_tampered_with_decides() -> None:
    merged = merge([run({}, log="one"), run({}, finished=False, log="two", tampered="it", seconds=3.0)])
    assert (merged.finished, merged.log, merged.tampered, merged.seconds) == (False, "two", "it", 3.0)
