import pytest

from hone.curate.mutation.engine import Reason, classify_run
from hone.grading.run import TestRun
from hone.types import TestStatus

EXPECTED = [f"t.py::t{i}" for i in range(8)]


def run(failing=(), *, missing=(), finished=True, status="failed"):
    statuses = {t: TestStatus(status if t in failing else "passed") for t in EXPECTED if t not in missing}
    return TestRun(statuses=statuses, finished=finished, log="", seconds=1.0)


@pytest.mark.parametrize(
    ("ran", "reason", "failing"),
    [
        (run(EXPECTED[:2]), None, EXPECTED[:2]),
        (run(EXPECTED[:2], status="error"), None, EXPECTED[:2]),
        (run(EXPECTED[:4]), None, EXPECTED[:4]),
        (run(), Reason.UNDETECTED, []),
        (run(EXPECTED[:2], status="skipped"), Reason.UNDETECTED, []),
        (run(EXPECTED[:5]), Reason.TOO_BROKEN, []),
        (run(EXPECTED[:2], finished=False), Reason.DID_NOT_END, []),
        (run(EXPECTED[:2], missing=EXPECTED[7:]), Reason.NOT_COLLECTED, []),
    ],
)
def test_bug_that_fails_some_tests_becomes_a_task(ran, reason, failing):
    assert classify_run(EXPECTED, ran) == (reason, failing)


def test_all_of_a_few_tests_may_fail():
    few = TestRun(statuses={EXPECTED[0]: TestStatus.FAILED}, finished=True, log="", seconds=1.0)
    assert classify_run(EXPECTED[:1], few) == (None, EXPECTED[:1])
