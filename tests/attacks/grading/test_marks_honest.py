"""Suites with marks, helpers and files of their own: the fix is resolved, and the unfixed code is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from hone.curate.runner import REWRITE
from hone.curate.validate import Admission
from hone.types import Task, TestStatus, Verdict
from tests.attacks.grading.attack import BUGGY, FIXED, Attack, grade_all
from tests.attacks.grading.suites import SUITES, task_of


def grade_suites(tmp_path: Path, source: str, tasks: Mapping[str, Task]) -> dict[str, Verdict]:
    attacks = {name: Attack(files={"stats.py": source}, task=task) for name, task in tasks.items()}
    return grade_all(attacks, tmp_path, scan=True)


@pytest.mark.full
def test_fix_is_resolved_in_suites_with_marks(tmp_path: Path) -> None:
    tasks = {name: task_of(suite) for name, suite in SUITES.items()}
    verdicts = grade_suites(tmp_path, FIXED, tasks)
    assert {name: v.tampered or v.log for name, v in verdicts.items() if not v.resolved} == {}
    for name, suite in SUITES.items():
        assert verdicts[name].tests == suite.ids, name
    excused = {name: Admission(task_id=name, gold=(v,)).excused for name, v in verdicts.items()}
    proved = {
        name: dataclasses.replace(task, checks=dataclasses.replace(task.checks, excused=excused[name]))
        for name, task in tasks.items()
    }
    again = grade_suites(tmp_path, FIXED, {name: proved[name] for name in ("marks", "unittest", "calls")})
    assert all(verdict.resolved for verdict in again.values())
    for name, verdict in grade_suites(tmp_path, BUGGY + "\n", proved).items():
        assert (verdict.resolved, verdict.tampered) == (False, None), name
        assert verdict.tests[f"{SUITES[name].file}::test_add"] is TestStatus.FAILED


@pytest.mark.full
def test_fix_is_resolved_where_failing_assertions_show_their_values(tmp_path: Path) -> None:
    """Runs that make tasks let pytest rewrite the assertions, also those of conftest.py."""
    tasks = {name: task_of(suite) for name, suite in SUITES.items()}
    shown = {
        name: dataclasses.replace(task, checks=dataclasses.replace(task.checks, command=REWRITE))
        for name, task in tasks.items()
    }
    verdicts = grade_suites(tmp_path, FIXED, shown)
    assert {name: v.tampered or v.log for name, v in verdicts.items() if not v.resolved} == {}
