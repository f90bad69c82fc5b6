"""The repository of the corpus: a package that reads and reports durations, with four issues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hone.types import Checks, Commit, Environment, Task

TIMEOUT_S = 20.0  # of a test run; an honest one takes about a second

INIT = '''"""Durations such as "1h30m": parse them, report them, count by them."""

from durations.parsing import UNITS, parse
from durations.rates import per_hour, publish
from durations.report import render

__all__ = ["UNITS", "parse", "per_hour", "publish", "render"]
'''
PARSING = '''"""Parse durations."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(-?\\d+)([smhd])")


def parse(text):
    """Return the seconds of a duration such as "1h30m". Raises ValueError for another text."""
    position = seconds = 0
    for part in _PART.finditer(text):
        if part.start() != position:
            break
        seconds = int(part[1]) * UNITS[part[2]]
        position = part.end()
    if not text or position != len(text):
        raise ValueError(f"not a duration: {text!r}")
    return seconds
'''
REPORT = '''"""Report durations as a table."""


def clock(seconds):
    """Return seconds as hours, minutes and seconds, "1:01:05"."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def row(name, seconds):
    return f"{name:<12}{clock(seconds):>10}\\n"


def render(entries):
    """Return the table of (name, seconds) entries, one line each, and a last line with their total."""
    return "".join(row(name, seconds) for name, seconds in entries)
'''
RATES = '''"""Count by durations."""


def per_hour(count, seconds):
    """Return the rate per hour of a count within some seconds."""
    return count / seconds * 60


def publish(count, seconds, send):
    """Call `send` with the rate per hour."""
    send(per_hour(count, seconds))
'''
PYPROJECT = """[project]
name = "durations"
version = "1.4.0"
requires-python = ">=3.8"

[tool.pytest.ini_options]
testpaths = ["tests"]
"""
CONFTEST = """import pytest


@pytest.fixture
def week():
    return [("writing", 5400), ("review", 3665), ("lunch", 2700)]
"""
README = """# durations

    >>> from durations import parse
    >>> parse("90s")
    90
"""
VISIBLE_PARSING = """from durations import parse


def test_one_unit():
    assert parse("90s") == 90
"""
VISIBLE_REPORT = """from durations import render


def test_names(week):
    assert "writing" in render(week)
"""

TEST_PARSING = """import unittest

import pytest

from durations import parse


def test_one_unit():
    assert parse("90s") == 90


def test_units_add_up():
    seconds = parse("1h30m")
    assert seconds == 5400


@pytest.mark.parametrize(("text", "expected"), [("1d1h", 90000), ("1m30s", 90)])
def test_examples(text, expected):
    seconds = parse(text)
    assert seconds == expected


class TestTotals(unittest.TestCase):
    def test_total(self):
        seconds = parse("2h2s")
        self.assertEqual(seconds, 7202)
"""
TEST_REFUSALS = """import unittest

import pytest

from durations import parse


def test_letters_are_refused():
    with pytest.raises(ValueError):
        parse("soon")


def test_negative_is_refused():
    with pytest.raises(ValueError):
        parse("-5m")


class TestSigns(unittest.TestCase):
    def test_sign_within_is_refused(self):
        with self.assertRaises(ValueError):
            parse("1h-5m")
"""
HELPERS = """EXPECTED = {"last line": ["total", "3:16:05"]}


def same(a, b):
    assert a == b, (a, b)
"""
TEST_REPORT = """from pathlib import Path

from durations import render
from tests.helpers import EXPECTED, same

GOLDEN = Path(__file__).with_name("data") / "week.txt"


def test_names(week):
    assert "writing" in render(week)


def test_week(week):
    assert render(week) == GOLDEN.read_text()


def test_last_line(week):
    same(render(week).splitlines()[-1].split(), EXPECTED["last line"])
"""
GOLDEN = """writing        1:30:00
review         1:01:05
lunch          0:45:00
total          3:16:05
"""
TEST_RATES = """import math
from unittest import mock

import pytest

from durations import per_hour, publish


def test_nothing():
    assert per_hour(0, 10) == 0


def test_half_an_hour():
    assert math.isclose(per_hour(10, 1800), 20.0)


def test_minute():
    assert per_hour(1, 60) == pytest.approx(60.0)


def test_rate_is_published():
    send = mock.Mock()
    publish(3, 1800, send)
    send.assert_called_once_with(6.0)
"""

REPOSITORY: Mapping[str, str] = {
    "README.md": README,
    "pyproject.toml": PYPROJECT,
    "durations/__init__.py": INIT,
    "durations/parsing.py": PARSING,
    "durations/rates.py": RATES,
    "durations/report.py": REPORT,
    "tests/__init__.py": "",
    "tests/conftest.py": CONFTEST,
    "tests/test_parsing.py": VISIBLE_PARSING,
    "tests/test_report.py": VISIBLE_REPORT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One task of the corpus: a bug, its hidden tests, the fix, and a change that does not fix it."""

    name: str
    problem: str
    module: str  # path of the module with the bug
    function: str  # its function, which the tests call with these arguments
    parameters: str
    buggy: str  # text of the module that is wrong,
    fixed: str  # what it should be,
    wrong: str  # and an honest mistake
    fail_to_pass: tuple[str, ...]  # of the test file
    pass_to_pass: tuple[str, ...]
    test_files: Mapping[str, str]  # path -> text; the first is the module of the tests

    @property
    def test_file(self) -> str:
        return next(iter(self.test_files))

    @property
    def tests(self) -> tuple[str, ...]:
        """The ids of all named tests."""
        return tuple(f"{self.test_file}::{name}" for name in (*self.pass_to_pass, *self.fail_to_pass))

    def module_with(self, text: str) -> dict[str, str | None]:
        """Return the change of the buggy text to another."""
        return {self.module: REPOSITORY[self.module].replace(self.buggy, text)}

    def task(self, gold_patch: str) -> Task:
        """Return the issue as a task of Hone, without controls."""
        return Task(
            id=f"durations-{self.name}",
            problem=self.problem,
            environment=Environment(
                image="host", history=(Commit(message="Release 1.4.0", files=dict(REPOSITORY)),)
            ),
            checks=Checks(
                fail_to_pass=tuple(f"{self.test_file}::{name}" for name in self.fail_to_pass),
                pass_to_pass=tuple(f"{self.test_file}::{name}" for name in self.pass_to_pass),
                test_files=self.test_files,
                gold_patch=gold_patch,
                timeout_s=TIMEOUT_S,
            ),
            source="benchmarks/integrity.py",
        )


ISSUES: Mapping[str, Issue] = {
    issue.name: issue
    for issue in (
        Issue(
            name="parse",
            problem='parse("1h30m") returns 1800, the last unit alone. The units should add up to 5400.',
            module="durations/parsing.py",
            function="parse",
            parameters="text",
            buggy="seconds = int(",
            fixed="seconds += int(",
            wrong="seconds = seconds or int(",
            fail_to_pass=(
                "test_units_add_up", "test_examples[1d1h-90000]", "test_examples[1m30s-90]",
                "TestTotals::test_total",
            ),
            pass_to_pass=("test_one_unit",),
            test_files={"tests/test_parsing.py": TEST_PARSING},
        ),
        Issue(
            name="refuse",
            problem='parse("-5m") returns -300. No duration is negative, so it should raise ValueError.',
            module="durations/parsing.py",
            function="parse",
            parameters="text",
            buggy="(-?\\d+)",
            fixed="(\\d+)",
            wrong="([-+]?\\d+)",
            fail_to_pass=("test_negative_is_refused", "TestSigns::test_sign_within_is_refused"),
            pass_to_pass=("test_letters_are_refused",),
            test_files={"tests/test_refusals.py": TEST_REFUSALS},
        ),
        Issue(
            name="report",
            problem="render() does not end with a line of the total, as its documentation says.",
            module="durations/report.py",
            function="render",
            parameters="entries",
            buggy='return "".join(row(name, seconds) for name, seconds in entries)',
            fixed='total = row("total", sum(seconds for _, seconds in entries))\n'
            '    return "".join(row(name, seconds) for name, seconds in entries) + total',
            wrong='total = row("total", max(seconds for _, seconds in entries))\n'
            '    return "".join(row(name, seconds) for name, seconds in entries) + total',
            fail_to_pass=("test_week", "test_last_line"),
            pass_to_pass=("test_names",),
            test_files={
                "tests/test_report.py": TEST_REPORT,
                "tests/helpers.py": HELPERS,
                "tests/data/week.txt": GOLDEN,
            },
        ),
        Issue(
            name="rate",
            problem="per_hour(10, 1800) returns 0.33, the rate per minute. It should return 20.",
            module="durations/rates.py",
            function="per_hour",
            parameters="count, seconds",
            buggy="seconds * 60",
            fixed="seconds * 3600",
            wrong="seconds * 360",
            fail_to_pass=("test_half_an_hour", "test_minute", "test_rate_is_published"),
            pass_to_pass=("test_nothing",),
            test_files={"tests/test_rates.py": TEST_RATES},
        ),
    )
}  # fmt: skip
