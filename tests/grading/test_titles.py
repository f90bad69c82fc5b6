"""The names of tests are those that the harness's parsers find in the log of the same run."""

from __future__ import annotations

import gzip
import io
import json
import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.commands import Suite
from hone.grading.in_sandbox.hone_titles import Titles
from hone.grading.titles import can_name, official_names

DATA = Path(__file__).parents[3] / "shared" / "data" / "swebench_logs"
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
WORDS = {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "expected failure": "XFAIL", "Testing": "PASSED"}
OUTCOMES: dict[str, tuple[str, Any]] = {  # name -> the word for it, and what a test does
    "passes": ("PASSED", None),
    "fails": ("FAILED", AssertionError("wrong")),
    "breaks": ("ERROR", KeyError("x")),
    "skips": ("SKIPPED", unittest.SkipTest("why")),
}
_LINES = st.sampled_from(
    ["", "One sentence.", "Two (words) here", "An ellipsis ... inside", "x\ny", "  \n z "]
)


def parse(name: str, log: str) -> dict[str, str]:
    from swebench.harness.log_parsers import PARSER_REGISTRY  # on use: a second of each worker

    return PARSER_REGISTRY[name](log, SimpleNamespace(repo="", version="", instance_id=""))


def real_logs(repository: str) -> list[str]:
    if not DATA.is_dir():
        pytest.skip("../shared/data/swebench_logs is not there")
    cases = map(json.loads, (DATA / "cases.jsonl").read_text().splitlines())
    logs = [
        gzip.decompress((DATA / case["log"]).read_bytes()) for case in cases if case["repo"] == repository
    ]
    return [log.decode().split(START)[1].split(END)[0] for log in logs]


def test_names_are_those_in_real_logs_of_django() -> None:
    for log in real_logs("django/django"):
        line = re.compile(
            r"^(\w+ \([\w.]+\)(?:\n[^\n]+?)?) \.\.\. (ok|FAIL|ERROR|skipped|expected failure|Testing)", re.M
        )
        # the runner's own output may come between a test and its result
        found = [(title, WORDS.get(word, "SKIPPED")) for title, word in line.findall(log)]
        titles = {f"tests/a.py::C::test[{number}]": title for number, (title, _) in enumerate(found)}
        statuses = {test: word for test, (_, word) in zip(titles, found, strict=True)}
        ours = official_names(statuses, "parse_log_django", suite=Suite.UNITTEST, titles=titles)
        assert ours == parse("parse_log_django", log)
        assert len(ours) >= 5


def test_names_are_those_in_real_logs_of_sympy() -> None:
    words = {"ok": "PASSED", "f": "XFAIL", "F": "FAILED", "E": "ERROR", "s": "SKIPPED"}
    for log in real_logs("sympy/sympy"):
        titles: dict[str, str] = {}
        statuses: dict[str, str] = {}
        file = ""
        for line in log.splitlines():
            if found := re.match(r"(sympy/\S+\.py)\[\d+\]", line):
                file = found[1]
            elif found := re.match(r"(test_\w+) (ok|f|F|E|s)\b", line):
                titles[f"{file}::{found[1]}"] = found[1]
                statuses[f"{file}::{found[1]}"] = words[found[2]]
        ours = official_names(statuses, "parse_log_sympy", suite=Suite.SYMPY, titles=titles)
        theirs = parse("parse_log_sympy", log)
        tests = {test for test in theirs if not test.startswith("sympy/")}
        assert {test: word for test, word in ours.items() if test in tests} == {
            test: theirs[test] for test in tests
        }
        assert len(tests) > 80
        assert {test for test in ours if test not in tests} == {test for test in theirs if test not in tests}


@given(st.lists(st.tuples(st.sampled_from(sorted(OUTCOMES)), _LINES), min_size=1, max_size=8))
def test_names_are_those_of_a_log_of_unittest(tests: list[tuple[str, str]]) -> None:
    methods: dict[str, Any] = {}
    for number, (outcome, line) in enumerate(tests):
        error = OUTCOMES[outcome][1]

        def run(self: Any, error: Any = error) -> None:
            if error is not None:
                raise error

        run.__doc__ = line or None
        methods[f"test_{number}"] = run
    case = type("Case", (unittest.TestCase,), methods)
    stream = io.StringIO()
    suite = unittest.TestSuite([case(name) for name in methods])
    titles = {f"a.py::Case::{test._testMethodName}": title_of(test) for test in suite}  # type: ignore[union-attr]
    unittest.TextTestRunner(stream, verbosity=2).run(suite)
    statuses = {test: OUTCOMES[tests[number][0]][0] for number, test in enumerate(titles)}
    theirs = parse("parse_log_django", stream.getvalue())
    worst = {test for test, word in theirs.items() if word in ("PASSED", "SKIPPED")}
    ours = official_names(statuses, "parse_log_django", suite=Suite.UNITTEST, titles=titles)
    assert set(ours) == set(theirs)
    differing = {test for test in ours if ours[test] != theirs[test]}
    # a name that several tests have: the worst of them counts, not the last
    assert all(ours[test] in ("FAILED", "ERROR", "SKIPPED") for test in differing & worst)
    assert len(differing) <= len(tests) - len({title.rpartition("\n")[2] for title in titles.values()})


def title_of(test: Any) -> str:
    line = test.shortDescription()
    return f"{test}\n{line}" if line else str(test)


@pytest.mark.parametrize(
    ("suite", "parser", "can"),
    [
        (Suite.PYTEST, "pytest", True),
        (Suite.PYTEST, "parse_log_sphinx", True),
        (Suite.PYTEST, "parse_log_django", False),
        (Suite.UNITTEST, "parse_log_django", True),
        (Suite.UNITTEST, "pytest", False),
        (Suite.SYMPY, "parse_log_sympy", True),
        (Suite.SYMPY, "parse_log_django", False),
    ],
)
def test_only_a_parser_of_the_suites_log_names_its_tests(suite: Suite, parser: str, can: bool) -> None:
    assert can_name(suite, parser) == can


SOURCES = {
    "/testbed/tests/pkg/test_a.py": b'''class Case:
    def test_one(self):
        """The first."""
    def test_two(self):
        """The second."""
    def test_plain(self):
        pass
''',
    "/testbed/tests/base.py": b'class Mixin:\n    def test_mixed(self):\n        """From a mixin."""\n',
}
ONE = "tests/pkg/test_a.py::Case::test_one"


@pytest.mark.parametrize(
    ("test", "title", "may"),
    [
        (ONE, "test_one (pkg.test_a.Case)\nThe first.", True),
        (ONE, "test_one (tests.pkg.test_a.Case.test_one)\nThe first.", True),
        (ONE, "test_one (pkg.test_a.Case)", True),
        (f"{ONE}[2]", "test_one (pkg.test_a.Case)\nThe first.", True),
        (ONE, "test_one (pkg.test_a.Case)\nThe second.", False),
        (ONE, "test_two (pkg.test_a.Case)", False),
        (ONE, "test_one (tests.base.Mixin)", False),
        (ONE, "test_one (pkg.test_a.Case)\nMade by a library.", True),
        ("tests/pkg/test_a.py::Case::test_mixed", "test_mixed (pkg.test_a.Case)\nFrom a mixin.", True),
        ("tests/pkg/test_a.py::Case::test_plain", "test_plain (pkg.test_a.Case)\nThe first.", False),
        ("tests/pkg/test_a.py::Case::test_one_7_x", "test_one_7_x (pkg.test_a.Case)\nThe first.", True),
        ("evil.py::Case::test_one", "test_one (pkg.test_a.Case)", False),
        ("evil.py::Case::test_one", "test_one (evil.Case)\nThe first.", False),
        ("evil.py::Case::test_one", "test_one (evil.Case)\nAnother.", True),
        ("unittest.loader::_FailedTest::pkg", "pkg (unittest.loader._FailedTest)", True),
    ],
)
def test_title_belongs_to_its_test(test: str, title: str, may: bool) -> None:
    assert Titles("/testbed", SOURCES).may_be_named(test, title) == may
