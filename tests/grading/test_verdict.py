"""The pass rule and the runner's report."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading import GraderError, TestRun
from hone.grading.in_sandbox.hone_tally import HELLO, Tally
from hone.grading.plan import TestJob
from hone.grading.rules import Counted
from hone.grading.run import read_report
from hone.grading.verdict import count_tests, make_verdict
from hone.types import Checks, TestStatus, Verdict

F2P, P2P = ("t::a", "t::b"), ("t::c",)
CHECKS = Checks(fail_to_pass=F2P, pass_to_pass=P2P, test_files={}, gold_patch="")
NONCE = "n" * 32
JOB = TestJob(workdir="/testbed", run_files=("t",), reported=CHECKS.named_tests, timeout_s=1)
_STATUSES = st.dictionaries(st.sampled_from([*F2P, *P2P, "t::other"]), st.sampled_from(TestStatus))


@given(_STATUSES, st.booleans(), st.one_of(st.none(), st.just("evidence")))
def test_resolved_needs_every_test_in_a_finished_honest_run(
    statuses: dict[str, TestStatus], finished: bool, tampered: str | None
) -> None:
    verdict = make_verdict(CHECKS, TestRun(statuses=statuses, finished=finished, tampered=tampered))
    good = [test for test in (*F2P, *P2P) if statuses.get(test) in (TestStatus.PASSED, TestStatus.XFAILED)]
    good += [test for test in P2P if statuses.get(test) is TestStatus.SKIPPED]  # kept, as the harness counts
    assert verdict.resolved == (len(good) == 3 and finished and tampered is None)
    assert set(verdict.tests) == {*F2P, *P2P}
    assert verdict.score == (0 if tampered else len({*good} & {*F2P}) / 2)
    assert all(verdict.tests[test] is TestStatus.MISSING for test in verdict.tests if test not in statuses)


@given(_STATUSES, st.sets(st.sampled_from([*F2P, *P2P])))
def test_skip_or_xfail_counts_as_with_the_reference_fix(
    statuses: dict[str, TestStatus], excused: set[str]
) -> None:
    run = TestRun(statuses=statuses)
    checks = dataclasses.replace(CHECKS, excused=tuple(excused))
    without, known = make_verdict(CHECKS, run), make_verdict(checks, run)
    ended = {test for test in (*F2P, *P2P) if statuses.get(test) in (TestStatus.SKIPPED, TestStatus.XFAILED)}
    assert known.tests == without.tests
    assert known.resolved == (without.resolved and ended <= excused)
    assert all(test in known.log for test in ended - excused)
    success = {test for counted in count_lists(checks, known) for test in counted.success}
    assert success == {test for counted in count_lists(CHECKS, without) for test in counted.success} - (
        ended - excused
    )


def count_lists(checks: Checks, verdict: Verdict) -> tuple[Counted, Counted]:
    report = count_tests(checks, verdict.tests)
    return report.fail_to_pass, report.pass_to_pass


def test_excused_test_is_found_by_an_id_that_is_cut_off() -> None:
    statuses = {"t::a": TestStatus.PASSED, "t::b": TestStatus.PASSED, "t::c[x y]": TestStatus.XFAILED}
    checks = dataclasses.replace(CHECKS, pass_to_pass=("t::c[x",), excused=("t::c[x",))
    assert make_verdict(checks, TestRun(statuses=statuses)).resolved
    assert not make_verdict(dataclasses.replace(checks, excused=()), TestRun(statuses=statuses)).resolved


def test_collected_task_is_scored_by_the_share_of_its_tests_that_pass() -> None:
    checks = dataclasses.replace(CHECKS, rule="collected", pass_to_pass=())
    statuses = {"t::a": TestStatus.PASSED, "t::b[1]": TestStatus.PASSED, "t::b[2]": TestStatus.FAILED}
    assert make_verdict(checks, TestRun(statuses=statuses)).score == 2 / 3
    assert make_verdict(checks, TestRun(statuses={})).score == 0


def _report(**changes: object) -> bytes:
    report = {
        "statuses": "ppp",
        "finished": True,
        "tampered": None,
        "titles": {},
        "exit_code": 1,
        "timed_out": False,
    }
    rest = {"seconds": 1.0, "memory_kib": 1024, "log": "", "crashed": None}
    return json.dumps([{**report, **rest, **changes}]).encode()


def _read(output: bytes) -> bool:
    (run,) = read_report(output, NONCE, JOB, "exit code 0")
    return make_verdict(CHECKS, run).resolved


def test_exactly_one_report_with_the_nonce_counts() -> None:
    framed = NONCE.encode() + b" " + _report() + b"\n"
    assert _read(HELLO + b"\n" + framed)
    assert _read(HELLO + b"x" * 32 + b" " + _report(statuses="fff") + b"\n" + framed)
    assert not _read(HELLO + b"x" * 32 + b" " + _report() + b"\n")
    assert not _read(HELLO + framed + framed)
    assert not _read(HELLO)
    for change in ({"statuses": "ppf"}, {"finished": False}, {"tampered": "x"}):
        assert not _read(HELLO + NONCE.encode() + b" " + _report(**change) + b"\n")


@pytest.mark.parametrize("output", [b"", b"python3: not found\n", NONCE.encode() + b" " + _report()])
def test_runner_without_greeting_gives_no_verdict(output: bytes) -> None:
    with pytest.raises(GraderError):
        _read(output)


def test_task_without_failing_tests_gives_no_verdict() -> None:
    with pytest.raises(GraderError):
        make_verdict(dataclasses.replace(CHECKS, fail_to_pass=()), TestRun(statuses={}))


KEY = b"k"
HONEST = [
    ["collected", ["c1", "a", "c2"]],
    *[["phase", test, phase, "passed"] for test in "a" for phase in ("setup", "call", "teardown")],
    *[
        ["phase", canary, phase, "failed" if phase == "call" else "passed"]
        for canary in ("c1", "c2")
        for phase in ("setup", "call", "teardown")
    ],
    ["end", 1],
]


def _tally(records: list[list[object]], exit_code: int = 1, key: bytes = KEY) -> tuple[bool, str | None, str]:
    tally = Tally(KEY, ["c1", "c2"])
    for record in records:
        tally.line(key + b" " + json.dumps(record).encode())
    finished = tally.finished(exit_code)
    if finished:
        tally.check_canaries()
    return finished, tally.tampered, tally.status("a")


def test_honest_session_is_accepted() -> None:
    assert _tally(HONEST) == (True, None, "passed")


def test_session_with_a_wrong_key_is_tampering() -> None:
    finished, tampered, status = _tally(HONEST, key=b"x")
    assert not finished
    assert tampered
    assert status == "missing"


@given(st.data())
def test_missing_repeated_or_moved_record_is_rejected(data: st.DataObject) -> None:
    records = list(HONEST)
    position = data.draw(st.integers(0, len(records) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "early end", "first"]))
    if change == "drop":
        records.pop(position)
    elif change == "double":
        records.insert(position, records[position])
    elif change == "early end":
        records.insert(position, ["end", 1])
    elif position:
        records.insert(0, records.pop(position))
    finished, tampered, _ = _tally(records)
    assert not finished or tampered or records == HONEST


@pytest.mark.parametrize("exit_code", [0, 2, -9, -11])
def test_contradicting_exit_code_is_rejected(exit_code: int) -> None:
    assert not _tally(HONEST, exit_code)[0]


def test_passing_canary_is_tampering() -> None:
    records = [[*r[:3], "passed"] if r[:2] == ["phase", "c1"] else r for r in HONEST]
    assert _tally(records)[1] is not None
    assert _tally([*HONEST[:-1], ["end", 0]], 0)[1] is not None


def test_excuse_that_the_text_does_not_allow_is_a_failure() -> None:
    tally = Tally(KEY, [], lambda test, status: test != "a")
    for record in [
        ["collected", ["a", "b"]],
        *(["phase", test, phase, outcome] for test in "ab" for phase, outcome in [
            ("setup", "passed"), ("call", "xfailed"), ("teardown", "passed"),
        ]),
    ]:  # fmt: skip
        tally.line(KEY + b" " + json.dumps(record).encode())
    assert (tally.find("a"), tally.find("b")) == ("failed", "xfailed")


@given(st.binary(max_size=60))
def test_foreign_bytes_in_the_channel_are_tampering(line: bytes) -> None:
    tally = Tally(b"a-key-nobody-guesses", [])
    tally.line(line)
    assert tally.tampered


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=4)))
def test_any_record_is_handled(record: object) -> None:
    tally = Tally(KEY, [])
    tally.line(KEY + b" " + json.dumps(record).encode())
    assert tally.tampered
    assert tally.phases == {}
