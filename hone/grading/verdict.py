"""The pass rule, and the reading of the trusted runner's report: pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hone.grading.errors import GraderError
from hone.grading.inside.hone_runner import HELLO, LETTERS
from hone.types import TestStatus, Verdict

PASSES = (
    TestStatus.PASSED,
    TestStatus.XFAILED,
)  # as SWE-bench counts; the runner reports a mark's xfail only
_STATUS = {letter: TestStatus(status) for status, letter in LETTERS.items()}


def judge(
    expected_f2p: Sequence[str],
    expected_p2p: Sequence[str],
    statuses: Mapping[str, TestStatus],
    *,
    finished: bool = True,
    tampered: str | None = None,
    log: str = "",
) -> Verdict:
    """Resolved when every expected test passes in a run that finished and was not tampered with.

    A test that is absent from `statuses` is missing and fails. A tampered run scores 0.
    """
    expected = (*expected_f2p, *expected_p2p)
    if not expected_f2p:
        raise GraderError("a task without fail-to-pass tests cannot be graded")
    tests = {test: statuses.get(test, TestStatus.MISSING) for test in expected}
    passes = sum(tests[test] in PASSES for test in expected_f2p)
    return Verdict(
        resolved=finished and tampered is None and all(status in PASSES for status in tests.values()),
        tests=tests,
        score=0.0 if tampered is not None else passes / len(expected_f2p),
        tampered=tampered,
        log=log,
    )


def read_report(
    output: bytes, nonce: str, expected_f2p: Sequence[str], expected_p2p: Sequence[str], *, ended: str
) -> Verdict:
    """The verdict in the runner's standard output.

    Without the runner's hello there is none: GraderError. With a hello and no report framed by `nonce`, code
    under test ended the runner, and nothing passes; `ended` says how, for the log.
    """
    if not output.startswith(HELLO):
        raise GraderError(
            f"the test runner did not start ({ended}): {output[:200].decode('utf-8', 'replace')!r}"
        )
    frame = nonce.encode() + b" "
    reports = [line for line in output.split(b"\n") if line.startswith(frame)]
    if len(reports) != 1:
        return judge(
            expected_f2p,
            expected_p2p,
            {},
            finished=False,
            log=f"the test run ended without a report ({ended})",
        )
    report: dict[str, Any] = json.loads(reports[0][len(frame) :])
    expected = (*expected_f2p, *expected_p2p)
    statuses = dict(zip(expected, (_STATUS[letter] for letter in report["statuses"]), strict=True))
    log = report["log"]
    if report["timed_out"]:
        log += f"\nthe tests were stopped after {report['seconds']:.0f} s"
    elif not report["finished"]:
        log += f"\nthe test session did not run to its end (exit code {report['exit_code']})"
    return judge(
        expected_f2p,
        expected_p2p,
        statuses,
        finished=report["finished"],
        tampered=report["tampered"],
        log=log,
    )
