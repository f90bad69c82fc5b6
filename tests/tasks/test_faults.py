"""Rows with faults: each is refused with its reason or becomes a task; none is resolved by accident."""

from __future__ import annotations

import pytest

from hone.cli.import_report import assess_rows
from hone.tasks.files import import_rows
from hone.tasks.formats import FORMATS, from_dict, to_line
from hone.tasks.gradeability import Gradeability
from hone.tasks.rows import parse
from tests.tasks.faults import base_rows, faulty_rows

NUMBER = 200
COMMIT = "0123456789" * 4
REFUSED = {  # faults that no task may have, whatever its format
    "a script that prints verdicts", "verdicts around the markers", "verdicts in a here-document",
    "verdicts beside a program", "verdicts in a file", "markers twice", "markers in the wrong order",
    "no test command",
    "a script that fails", "an unknown parser", "an unknown rule", "a test patch that is none",
    "a repository of another language", "tests that are not Python", "no tests", "no time",
    "an unknown field", "no history", "no expected test", "tests that fail after the fix",
    "a fix that is none",
}  # fmt: skip


@pytest.mark.parametrize("name", list(FORMATS))
def test_sound_row_can_be_graded(name: str) -> None:
    rows, tasks = assess_rows(import_rows([base_rows(COMMIT)[name]], FORMATS[name]))
    assert len(tasks) == 1, rows
    here = name in ("hone", "kodcode", "debugging", "harbor")
    assert rows[0].status is (Gradeability.GRADEABLE if here else Gradeability.NEEDS_IMAGE)


@pytest.mark.parametrize("name", list(FORMATS))
def test_faulty_row_is_refused_with_its_reason_or_becomes_a_task(name: str) -> None:
    faulty = list(faulty_rows(name, COMMIT, NUMBER, seed=1))
    rows, tasks = assess_rows(import_rows((row for _, row in faulty), FORMATS[name]))
    assert [each.row for each in rows] == list(range(1, NUMBER + 1))
    for (fault, _), each in zip(faulty, rows, strict=True):
        refused = each.status is Gradeability.REFUSED
        assert bool(each.reason) == (each.status is not Gradeability.GRADEABLE), fault
        assert "Traceback" not in each.reason
        assert refused or fault not in REFUSED, (fault, each)
    for task in tasks:  # what is imported can be saved, read and assessed again
        assert from_dict(parse(to_line(task))) == task
    assert 20 < len(tasks) < NUMBER - 20
