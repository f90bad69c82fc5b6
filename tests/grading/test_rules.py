"""The pass rules equal those of the swebench package, on random statuses and on published logs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.errors import GraderError, LogRefused
from hone.grading.rules import END, EXIT_CODE, START, Edition, Resolution, Rule, count, find_parser, read_log

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "swebench_logs"
STATUSES = ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"]
# ids that are each other's beginnings, and cut off inside their parameters
tests = st.text("ab[]", min_size=1, max_size=4)
statuses = st.dictionaries(tests, st.sampled_from(STATUSES), max_size=8)


@given(statuses, st.lists(tests, max_size=6), st.lists(tests, max_size=6), st.sampled_from(Rule))
def test_rules_equal_those_of_the_swebench_package(
    statuses: dict[str, str], fixed: list[str], kept: list[str], rule: Rule
) -> None:
    from swebench.harness import grading as harness  # here: it takes a second to import

    gold: Any = {"FAIL_TO_PASS": fixed, "PASS_TO_PASS": kept}
    theirs = harness.get_eval_tests_report(statuses, gold, eval_type=harness.EvalType(rule.value))
    ours = count(statuses, fixed, kept, rule=rule)
    for name, counted in (("FAIL_TO_PASS", ours.fail_to_pass), ("PASS_TO_PASS", ours.pass_to_pass)):
        assert theirs[name] == {"success": list(counted.success), "failure": list(counted.failure)}
    assert ours.resolution == harness.get_resolution_status(theirs)


def test_edition_4_ignores_skipped_tests_and_needs_complete_ids() -> None:
    statuses = {"a": "SKIPPED", "b": "PASSED", "c[1 2]": "PASSED"}
    assert count(statuses, ["a", "b"], ["a"]).resolution is Resolution.PARTIAL
    assert count(statuses, ["a", "b"], ["a"], edition=Edition.V4).resolution is Resolution.FULL
    assert count(statuses, ["c[1"], []).resolution is Resolution.FULL
    assert count(statuses, ["c[1"], [], edition=Edition.V4).resolution is Resolution.NO


def _cases() -> list[Any]:
    file = PUBLISHED / "cases.jsonl"
    if not file.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the published logs are not here"))]
    cases = [json.loads(line) for line in file.read_text().splitlines()]
    return [pytest.param(case, id=case["case"]) for case in cases]


@pytest.mark.parametrize("case", _cases())
def test_published_log_gets_its_published_verdict(case: dict[str, Any]) -> None:
    text = gzip.decompress((PUBLISHED / case["log"]).read_bytes()).decode("utf-8", "replace")
    spec = {name: case[name] for name in ("repo", "version", "instance_id")}
    expected = case["expected"]
    try:
        statuses = read_log(text, find_parser(case["parser"]), strict=True, **spec)
    except LogRefused:
        assert not expected["log_valid"]
        return
    assert expected["log_valid"]
    report = count(statuses, case["FAIL_TO_PASS"], case["PASS_TO_PASS"])
    assert report.resolution == expected["status"]
    assert (report.resolution is Resolution.FULL) == expected["resolved"]
    for name, counted in (("FAIL_TO_PASS", report.fail_to_pass), ("PASS_TO_PASS", report.pass_to_pass)):
        told = expected["tests_status"][name]
        assert (list(counted.success), list(counted.failure)) == (told["success"], told["failure"])


def _log(inside: str, *, before: str = "", after: str = "") -> str:
    return f"{before}\n+ : '{START}'\n{inside}\n+ : '{END}'\n{after}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PASSED t.py::a", "lacks its start"),
        (_log("PASSED t.py::a", before=">>>>> Patch Apply Failed"), "did not apply"),
        (_log("PASSED t.py::a", after=">>>>> Tests Timed Out"), "out of time"),
        (_log(""), "nothing shows that any ran"),
        (_log("Executed 0 of 0"), "nothing shows that any ran"),
        (_log("PASSED t.py::a", after=f"{EXIT_CODE}: 1"), "exit code 1"),
        (_log("PASSED t.py::a") + _log("FAILED t.py::a"), "more than once"),
    ],
)
def test_log_of_an_incomplete_run_is_refused(text: str, reason: str) -> None:
    with pytest.raises(LogRefused, match=reason):
        read_log(text, find_parser("parse_log_pytest"), strict=True)


def test_text_outside_the_markers_counts_only_without_text_inside() -> None:
    parser = find_parser("parse_log_pytest")
    outside = _log("", after="PASSED t.py::a")
    for edition in Edition:
        assert read_log(outside, parser, edition=edition) == {"t.py::a": "PASSED"}
    assert read_log(_log("FAILED t.py::a", after="PASSED t.py::a"), parser) == {"t.py::a": "FAILED"}


@pytest.mark.parametrize(
    ("parser", "line", "test_4", "test_5"),
    [
        ("parse_log_pytest", "SKIPPED [1] t.py:3: no", {"[1]": "SKIPPED"}, {}),
        ("parse_log_pytest", "FAILED - t.py::a", {"t.py::a": "FAILED"}, {"t.py::a": "FAILED"}),
        ("parse_log_flask", "FAILED t.py::a - no", {"t.py::a": "FAILED"}, {"t.py::a": "FAILED"}),
        ("parse_log_requests", "PASSED t.py::a[/b/c]", {"t.py::a[/c]": "PASSED"}, {"t.py::a[/c]": "PASSED"}),
        ("parse_log_astropy", "PASSED t.py::a[b c]", {"t.py::a[b": "PASSED"}, {"t.py::a[b c]": "PASSED"}),
        ("parse_log_astropy", "t.py::a[b c] PASSED", {"t.py::a[b": "c]"}, {"t.py::a[b c]": "PASSED"}),
        ("parse_log_astropy", "\x1b[31mERROR\x1b[0m t.py::a", {"t.py::a": "ERROR"}, {"t.py::a": "ERROR"}),
        (
            "parse_log_matplotlib",
            "PASSED t.py::a[MouseButton.LEFT]",
            {"t.py::a[1]": "PASSED"},
            {"t.py::a[1]": "PASSED"},
        ),
        ("parse_log_sympy", "test_a ok", {"test_a": "PASSED"}, {"test_a": "PASSED"}),
    ],
)
def test_editions_read_a_line_as_their_packages_do(
    parser: str, line: str, test_4: dict[str, str], test_5: dict[str, str]
) -> None:
    assert find_parser(parser, Edition.V4)(line, None) == test_4
    assert find_parser(parser, Edition.V5)(line, None) == test_5


def test_edition_4_is_refused_for_other_languages() -> None:
    with pytest.raises(GraderError, match="for Python repositories"):
        find_parser("parse_log_maven", Edition.V4)


def test_unknown_parser_is_named() -> None:
    with pytest.raises(GraderError, match="no log parser 'parse_log_cobol'; swebench has parse_log_ant"):
        find_parser("parse_log_cobol")
