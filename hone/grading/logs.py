"""Test logs of the SWE-bench harness: read with its own parsers, or refused with the reason.

A log is text that the patch under test could write to. It is read only where a data set demands it, and what
speaks against it is looked for: markers more than once, a failing exit code beside no failing test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hone.grading.errors import GraderError, LogRefused
from hone.grading.rules import Edition, Statuses
from hone.tasks.formats import r2e
from hone.types import Task

START, END, EXIT_CODE = (
    f">>>>> {words}" for words in ("Start Test Output", "End Test Output", "Test Exit Code")
)
_BROKEN = {
    ">>>>> Patch Apply Failed": "the patch did not apply",
    ">>>>> Reset Failed": "the repository could not be reset",
    ">>>>> Tests Errored": "the tests could not be run",
    ">>>>> Tests Timed Out": "the tests ran out of time",
}
BARE_NAMES = "parse_log_sympy"  # names test functions without their files; pytest can run them, too
OWN = "pytest"  # names tests by pytest's own ids, which no parser made
Parser = Callable[[str, Any], dict[str, str]]


def find_parser(name: str) -> Parser:
    """R2E-Gym's parser, or one of the `swebench` package by its name there. Raises GraderError."""
    if name == r2e.PARSER:
        return lambda log, _: r2e.parse_log(log)
    try:
        from swebench.harness.log_parsers import PARSER_REGISTRY
    except ImportError as error:
        raise GraderError("reading logs needs the swebench package: pip install 'hone[swebench]'") from error
    if name not in PARSER_REGISTRY:
        raise GraderError(
            f"there is no log parser {name!r}; swebench has {', '.join(sorted(PARSER_REGISTRY))}"
        )
    return PARSER_REGISTRY[name]


_PYTEST = ("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_seaborn",
           "parse_log_matplotlib")  # fmt: skip
# As pytest's summary orders them: of two tests that a parser takes for one, the worse counts.
_PASSED = ("PASSED", "XFAIL", "SKIPPED")
_ORDER = ("PASSED", "SKIPPED", "XFAIL", "ERROR", "FAILED")


def reads_pytest(parser: str) -> bool:
    """Whether the test ids of a parser are made from pytest's."""
    return parser == OWN or find_parser(parser) in map(find_parser, _PYTEST)


def rename(statuses: Statuses, parser: str, **spec: str) -> Statuses:
    """Statuses by the names that a parser of the harness makes of pytest's ids.

    It is asked to read a summary of them: some cut ids at a space, others cut paths out of parameters.
    """
    if parser == OWN:
        return statuses
    lines = [f"{word} {test}" for word in _ORDER for test, status in statuses.items() if status == word]
    return find_parser(parser)("\n".join(lines), SimpleNamespace(**spec))


def describe(task: Task) -> dict[str, str]:
    """Return the facts about a task that some repositories' parsers use."""
    row = task.metadata.get("row", {})
    version = str(row.get("version", "")) if isinstance(row, dict) else ""
    return {"repo": task.environment.repo, "instance_id": task.id, "version": version}


def read_log(
    text: str,
    parser: Parser,
    *,
    edition: Edition = Edition.V5,
    strict: bool = False,
    **spec: str,
) -> Statuses:
    """What the tests of a log came to. Raises LogRefused when it does not tell of a whole run.

    Args:
        text: of `test_output.txt`, whole.
        strict: also refuse a log whose markers stand more than once, as a forged one would; the harness takes
            the first ones.
        spec: what parsers of some repositories look at: `repo`, `version`, `instance_id`.
    """
    for marker, reason in _BROKEN.items():
        if marker in text:
            raise LogRefused(reason)
    if START not in text or END not in text:
        raise LogRefused("the test output has no beginning or no end")
    if strict and (text.count(START) > 1 or text.count(END) > 1):
        raise LogRefused("the markers of the test output stand more than once")
    about = SimpleNamespace(**spec)
    statuses = parser(text.split(START)[1].split(END)[0], about)
    if strict:
        statuses = _worst(text.split(START)[1].split(END)[0], parser, about, statuses)
    if edition is Edition.V4:
        return statuses
    if not statuses:  # some runners write around the markers
        statuses = parser(text, about)
    if not statuses and not _says_that_tests_ran(text):
        raise LogRefused("no test is told of, and nothing says that any ran")
    code = re.search(rf"{re.escape(EXIT_CODE)}:\s*(-?\d+)", text)
    told_failed = any(status in ("FAILED", "ERROR") for status in statuses.values())
    if statuses and not told_failed and code is not None and int(code[1]) != 0:
        raise LogRefused(f"the tests ended with exit code {code[1]}, and no failing test is told of")
    return statuses


def _worst(text: str, parser: Parser, about: SimpleNamespace, statuses: Statuses) -> Statuses:
    """Of a test that lines tell of differently the worse: who failed cannot say later that it passed."""
    worst = dict(statuses)
    for line in text.splitlines():
        for test, status in parser(line, about).items():
            if test in worst and worst[test] in _PASSED and status in ("FAILED", "ERROR"):
                worst[test] = status
    return worst


def _says_that_tests_ran(text: str) -> bool:
    """Some runners tell of failing tests only; the package knows what they print when a run ends."""
    from swebench.harness.grading import SUITE_RAN

    return SUITE_RAN.search(text) is not None
