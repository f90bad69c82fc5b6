"""The names that log parsers give the tests of suites besides pytest.

A trusted session reports each test by an id (`tests/test_a.py::Case::test_x`) and by the title that its
runner prints. From the results, these functions write the lines that the runner's log would hold, and the
data set's own parser reads them: ids are then those of the data set, with every peculiarity of its parser.
Nothing of the sandbox's output enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from hone.grading.commands import Suite
from hone.grading.rules import (
    BARE_NAMES,
    OWN,
    OWN_UNITTEST,
    UNITTEST_NAMES,
    Statuses,
    find_parser,
    reads_pytest,
    rename,
)

# The worst last: where a parser gives two tests one name, the worse result counts.
_UNITTEST_WORDS = {
    "PASSED": "ok", "SKIPPED": "skipped ''", "XFAIL": "expected failure", "ERROR": "ERROR", "FAILED": "FAIL",
}  # fmt: skip
_SYMPY_WORDS = {"PASSED": "ok", "SKIPPED": "s", "XFAIL": "f", "ERROR": "E", "FAILED": "F"}


def can_name(suite: Suite, parser: str) -> bool:
    """Return whether a parser reads the log of a suite. Raises GraderError for an unknown parser."""
    if suite is Suite.PYTEST:
        return reads_pytest(parser)
    name = UNITTEST_NAMES if suite is Suite.UNITTEST else BARE_NAMES
    return not reads_pytest(parser) and find_parser(parser) is find_parser(name)


def is_renamed(suite: Suite, parser: str) -> bool:
    """Return whether a data set's parser gives the tests of a trusted run other names than their ids."""
    if parser in (OWN, OWN_UNITTEST):
        return False
    return suite is not Suite.PYTEST or reads_pytest(parser)


def official_names(
    statuses: Statuses, parser: str, *, suite: Suite, titles: Mapping[str, str], **spec: str
) -> Statuses:
    """Return the statuses of a trusted run by the names that the data set's parser gives its tests.

    Args:
        statuses: by id, in the words of the parsers.
        titles: id -> what the suite's runner prints before the result, of the tests that started, in order.
    """
    if suite is Suite.PYTEST:
        return rename(statuses, parser, **spec) if is_renamed(suite, parser) else statuses
    write = _unittest_log if suite is Suite.UNITTEST else _sympy_log
    started = {test: statuses[test] for test in titles if test in statuses}
    return find_parser(parser)("\n".join(write(started, titles)), SimpleNamespace(**spec))


def _unittest_log(statuses: Statuses, titles: Mapping[str, str]) -> Sequence[str]:
    lines = [
        f"{titles[test]} ... {word}"
        for status, word in _UNITTEST_WORDS.items()
        for test in statuses
        if statuses[test] == status
    ]
    errors = [
        f"{word}: {titles[test]}"
        for status, word in (("ERROR", "ERROR"), ("FAILED", "FAIL"))
        for test in statuses
        if statuses[test] == status
    ]
    return [*lines, *errors]


def _sympy_log(statuses: Statuses, titles: Mapping[str, str]) -> Sequence[str]:
    """`bin/test` ends the line of a file's last test with the result of the file."""
    last = {test.split("::")[0]: test for test in titles}
    lines = [
        f"{titles[test]} {word}{' [OK]' if last[test.split('::')[0]] == test else ''}"
        for status, word in _SYMPY_WORDS.items()
        for test in statuses
        if statuses[test] == status
    ]
    failed = [
        f"___ {test.split('::')[0]}:{titles[test]} ___"
        for test, status in statuses.items()
        if status in ("ERROR", "FAILED")
    ]
    return [*lines, *failed]
