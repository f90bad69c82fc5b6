"""Check and count the test process's records; a record that no honest session sends is tampering."""

import json
import random
from collections.abc import Callable

HELLO = b"hone-grader: ready\n"
UNUSABLE = b"hone-grader: unusable: "  # then the reason; no test ran

# Statuses in the report, one letter per test, in the order of the reported ids.
LETTERS = {"passed": "p", "failed": "f", "error": "e", "skipped": "s", "xfailed": "x", "missing": "m"}
WORST_FIRST = ("missing", "error", "failed", "skipped", "xfailed", "passed")


def name_canaries(count: int) -> "list[str]":
    """Return random ids for the canaries."""
    names = random.SystemRandom()
    stems = [f"{names.getrandbits(32):08x}" for _ in range(count)]
    return [f"test_{stem}.py::test_{stem}" for stem in stems]


class Tally:
    """The statuses in the child's records, and evidence of tampering.

    An honest session sends `collected` (every id, canaries included); for each id `title` (of suites besides
    pytest), `setup`, `call` unless the setup failed or skipped, `teardown`; finally `end` with the status.

    Args:
        may_end_as: (test, status) -> whether a test may end as skipped or xfailed; if not, it failed.
        may_be_named: (test, title) -> whether a suite's runner may print a test so.
    """

    def __init__(
        self,
        key: bytes,
        canaries: "list[str]",
        may_end_as: "Callable[[str, str], bool]" = lambda test, status: True,
        may_be_named: "Callable[[str, str], bool]" = lambda test, title: True,
    ) -> None:
        self.key, self.canaries, self.may_end_as = key, canaries, may_end_as
        self.may_be_named = may_be_named
        self.titles: dict[str, str] = {}  # id -> what a suite besides pytest prints, of tests that started
        self.phases: dict[str, dict[str, str]] = {}  # id -> phase -> outcome, of collected ids
        self.failed_subtests: set[str] = set()
        self.collected = False
        self.end: int | None = None  # the exit status that the session reported
        self.tampered: str | None = None  # the first evidence
        self.crashed: str | None = None  # what went wrong first in the runner's own code

    def blame(self, evidence: str) -> None:
        if self.tampered is None:
            self.tampered = str(evidence)

    def line(self, line: bytes) -> None:
        """Add one record, `KEY JSON`."""
        key, _, body = line.partition(b" ")
        if key != self.key:
            self.blame("code other than the test runner wrote to its result channel")
            return
        try:
            kind, *values = json.loads(body)
            {
                "collected": self.on_collected,
                "phase": self.on_phase,
                "title": self.on_title,
                "tampered": self.blame,
                "crashed": self.on_crashed,
                "end": self.on_end,
            }[kind](*values)
        except (ValueError, TypeError, KeyError):
            self.blame("the result channel carried a record of a wrong shape")

    def on_collected(self, ids: "list[str]") -> None:
        if self.collected or len(set(ids)) != len(ids):
            self.blame("tests were collected twice")
            return
        self.collected = True
        self.phases = {test: {} for test in ids}

    def on_phase(self, test: str, phase: str, outcome: str) -> None:
        phases = self.phases.get(test)
        if outcome not in ("passed", "failed", "skipped", "xfailed"):
            raise ValueError(outcome)
        if phases is None:
            self.blame(f"a result was reported for {test}, which was not collected")
        elif self.end is not None:
            self.blame("a result was reported after the end of the session")
        elif phase == "subtest":
            if outcome == "failed":
                self.failed_subtests.add(test)
        elif phase != self.next_phase(phases):
            self.blame(f"{test} was reported twice, or its phases out of order")
        else:
            phases[phase] = outcome

    def on_title(self, test: str, title: str) -> None:
        if test not in self.phases or test in self.titles or type(title) is not str:
            self.blame(f"{test} was named twice, or was not collected")
        elif not self.may_be_named(test, title):
            self.blame(f"{test} was reported by the name of another test: {title!r}")
        else:
            self.titles[test] = title

    def next_phase(self, phases: "dict[str, str]") -> "str | None":
        if "setup" not in phases:
            return "setup"
        if phases["setup"] == "passed" and "call" not in phases:
            return "call"
        return "teardown" if "teardown" not in phases else None

    def on_crashed(self, error: str) -> None:
        if self.crashed is None:
            self.crashed = str(error)

    def on_end(self, status: int) -> None:
        if self.end is not None:
            self.blame("the session ended twice")
        self.end = int(status)

    def status(self, test: str) -> str:
        status = self.reported(test)
        return status if self.may_end_as(test, status) else "failed"

    def reported(self, test: str) -> str:
        """Return the status as the child reported it."""
        phases = self.phases.get(test, {})
        setup, call, teardown = (phases.get(phase) for phase in ("setup", "call", "teardown"))
        if setup is None:
            return "missing"
        if setup != "passed":
            return "error" if setup == "failed" else setup
        if call is None or teardown is None:
            return "missing"
        if call == "passed" and test in self.failed_subtests:
            return "failed"
        return "error" if call == "passed" and teardown == "failed" else call

    def find(self, test: str) -> str:
        """Return the status of a test by the name that data sets use.

        A name without a file is that of a test function, with any parameters: the worst status counts. An id
        that is cut off in its parameters is matched by its beginning; see `hone.grading.rules.find`. pytest
        before 4 writes `Class::()::test`, and later versions `Class::test`.
        """
        if test in self.phases:
            return self.status(test)
        plain = [each for each in self.phases if each.replace("::()::", "::") == test.replace("::()::", "::")]
        if plain:
            named = plain
        elif "::" not in test:
            named = [each for each in self.phases if each.rpartition("::")[2].partition("[")[0] == test]
        elif test.count("[") > test.count("]"):
            named = [each for each in self.phases if each.startswith(test)]
            if len({self.status(each) in ("passed", "xfailed") for each in named}) > 1:
                return "missing"  # the id is ambiguous
        else:
            named = []
        statuses = {self.status(each) for each in named}
        return next((status for status in WORST_FIRST if status in statuses), "missing")

    def finished(self, exit_code: int) -> bool:
        """Return whether the session is complete: every test has all phases, and the exit codes agree."""
        if not self.collected or self.end is None or exit_code != self.end or self.end not in (0, 1):
            return False
        return all("teardown" in phases for phases in self.phases.values())

    def check_canaries(self) -> None:
        """Report tampering in a finished session: a canary that did not fail, a contradicting exit status."""
        for canary in self.canaries:
            status = self.status(canary)
            if status not in ("failed", "error", "skipped"):
                self.blame(f"a test that must fail came back as {status}")
        outcomes = {self.status(test) for test in self.phases}
        if self.end == 0 and outcomes & {"failed", "error"}:
            self.blame("the session's exit status contradicts its results")
