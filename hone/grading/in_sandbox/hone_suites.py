"""The child of the trusted runner for suites besides pytest: reports results, and watches their framework.

A session of one suite (`hone_unittest`, `hone_sympy`) loads and runs the tests; this file tells the parent.
"""

import gc
import sys
import types
import warnings
from typing import Any, Dict, List, Set

import hone_integrity  # beside this file
from hone_trusted import Send, Trust, prepare_imports

# What the framework of these suites consists of; no test changes it for others.
CORE = ("unittest.case", "unittest.suite", "unittest.result", "unittest.runner", "hone_")
PHASES = {
    "passed": ("passed", "passed"),
    "failed": ("passed", "failed"),
    "xfailed": ("passed", "xfailed"),
    "skipped": ("skipped", None),
    "error": ("failed", None),
}  # outcome of a test -> those of its phases setup and call


class Recorder:
    """Send the results of a session's tests to the parent."""

    def __init__(self, job: "Dict[str, Any]", trust: Trust, send: Send, canaries: "List[str]") -> None:
        self.trust, self.send, self.canaries, self.only = trust, send, canaries, job["only"]
        self.reported: Set[str] = set()
        self.expected: List[str] = []
        trust.copies.install()
        self.watch = hone_integrity.Watch(None, (), trust.helpers, trust.copies.snapshots, sys.modules, CORE)

    def is_selected(self, file: str) -> bool:
        """Return whether this run has the tests of a file, named below the root."""
        return self.only is None or file in self.only

    def is_trusted(self, test: str) -> bool:
        """Return whether a test lies in a trusted file."""
        return test.split("::")[0] in self.trust.names

    def is_code_under_test(self, code: types.CodeType) -> bool:
        file = code.co_filename
        return file.startswith(self.trust.workdir + "/") and "/site-packages/" not in file

    def begin(self, tests: "List[str]", *, marks: bool = True) -> None:
        """Tell the parent which tests follow.

        Args:
            marks: whether nothing but the tests themselves may mark them.
        """
        self.check()
        self.trust.modules.check(marks=marks)
        self.trust.copies.keep()
        self.expected = tests
        self.send("collected", tests)

    def report(self, test: str, title: str, outcome: str) -> None:
        """Send the result of a test that started."""
        setup, call = PHASES[outcome]
        self.reported.add(test)
        self.send("title", test, title)
        self.send("phase", test, "setup", setup)
        if call is not None:
            self.send("phase", test, "call", call)
        self.send("phase", test, "teardown", "passed")
        self.check()

    def finish(self, *, marks: bool = True) -> None:
        """Send that the tests without a result did not start."""
        self.check()
        self.trust.modules.check(marks=marks)
        for test in self.expected:
            if test not in self.reported:
                self.send("phase", test, "setup", "failed")
                self.send("phase", test, "teardown", "passed")

    def check(self) -> None:
        changed = self.watch.changed(thorough=True)
        if changed:
            self.send("tampered", "the code under test replaced {}".format(changed))

    def blame_replaced(self, test: str) -> None:
        self.send("tampered", "the function of {} was replaced before it ran".format(test))


def prepare(job: "Dict[str, Any]", trust: Trust) -> None:
    """Make the repository importable, as the suite's own command does."""
    before = len(sys.warnoptions)
    prepare_imports(job, trust)
    options: Any = vars(warnings)["_processoptions"]  # as Python does when it starts
    options(sys.warnoptions[before:])
    if hasattr(gc, "freeze"):  # Python 3.7
        gc.freeze()  # the garbage collector skips the modules imported so far
