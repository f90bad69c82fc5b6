"""The session of tests that unittest's runner runs: unittest itself, Django's runner, a project's script.

The command's program runs as it is, with `unittest.TextTestRunner` replaced: the first suite that it runs is
taken apart, and its tests run in a plain suite with a result class that reports to the parent. A program that
runs no suite, or another one, leaves the named tests without a result. Canaries, tests that must fail, run
first and last under random names, the last ones as subclasses of what the tests' own classes derive from.
"""

import os
import runpy
import sys
import types
import unittest
import unittest.main
from typing import Any, Dict, Iterator, List, Set, Tuple

from hone_suites import Recorder, prepare  # beside this file
from hone_trusted import Send, Trust

BASES = 4  # classes of the code under test for which there is a canary
_SUCCESS = (None, 0, 1)  # exit codes of a program whose tests ran
_WORST_FIRST = ("error", "failed", "skipped", "xfailed", "passed")
_RUN = unittest.TestCase.run.__code__


def run(job: "Dict[str, Any]", trust: Trust, send: Send, canaries: "List[str]") -> None:
    """Run the program, send its records with `send`, and exit the process."""
    exit_process, log = os._exit, print
    # before the framework is watched
    unittest.TextTestRunner = unittest.runner.TextTestRunner = Runner  # type: ignore[misc]
    watch_skips()
    session = Runner.session = Session(job, trust, send, canaries)
    prepare(job, trust)
    os.environ["DJANGO_TEST_PROCESSES"] = "1"  # in this process
    status = 3
    try:
        start_program(job["program"], trust)
        status = 1
    except SystemExit as end:
        status = 1 if end.code in _SUCCESS else 3
    except BaseException as error:  # any exception of the code under test ends the session
        log("the test session was stopped by", type(error).__name__, error, flush=True)
    session.close()
    send("end", status)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        exit_process(status)


def start_program(program: "List[str]", trust: Trust) -> None:
    """Run a script or a module as `python` does; a trusted script from its text."""
    if program[0] == "-m":
        sys.argv[:] = ["-m", *program[2:]]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    path = os.path.normpath(os.path.join(trust.workdir, program[0]))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    sys.argv[:] = program
    sys.path.insert(0, os.path.dirname(path))
    if path in trust.sources:
        trust.modules.execute(main, trust.compile(trust.sources[path], path), trust.sources[path])
    else:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec", dont_inherit=True), vars(main))


def watch_skips() -> None:
    """Make every SkipTest tell the session where it is raised."""
    given = unittest.SkipTest.__init__

    def __init__(self: Any, *arguments: Any) -> None:
        given(self, *arguments)
        if Runner.session is not None:
            Runner.session.on_skip(sys._getframe(1))

    unittest.SkipTest.__init__ = __init__


class Session(Recorder):
    """The tests of one suite, and what became of the one that runs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.started = False
        self.tests: Dict[int, Tuple[str, Any]] = {}  # id of a test's object -> its id, itself
        self.functions: Dict[str, Any] = {}  # test id -> its function, as collected
        self.marks: dict[
            str, tuple[bool, bool]
        ] = {}  # test id -> whether it is marked: skip, expected to fail
        self.outcomes: List[str] = []  # of the running test
        self.skips: List[bool] = []  # of the running test: whether the code under test raised the SkipTest
        self.classes: Set[str] = set()  # names of the canaries' modules

    def suite(self, given: Any) -> unittest.TestSuite:
        """Return the tests of a suite among canaries, in a plain suite; tell the parent about them."""
        self.started = True
        main = sys.modules["__main__"]
        if (
            getattr(main, "__file__", None) in self.trust.sources
        ):  # it may hold tests, and is not executed to its end
            self.trust.define(main)
        leaves = [test for test in leaves_of(given) if self.is_selected(self.file_of(type(test)))]
        bases = self.bases_of(leaves) or [unittest.TestCase]
        first, *last = [
            self.canary(name, unittest.TestCase if number < 2 else bases[number % len(bases)], number)
            for number, name in enumerate(self.canaries)
        ]
        tests = [first, *leaves, *last]
        named: Dict[str, int] = {}
        for test, name in zip(tests, [self.canaries[0], *map(self.identify, leaves), *self.canaries[1:]]):
            named[name] = named.get(name, 0) + 1
            if named[name] > 1:
                name = "{}[{}]".format(name, named[name])  # the suite holds it twice
            self.tests[id(test)] = (name, test)
            self.functions[name] = function_of(test)
            self.marks[name] = marks_of(test)
            if self.is_trusted(name) and not self.is_defined(name, test):
                self.blame_replaced(name)
        self.begin([name for name, _ in self.tests.values()], marks=self.owns_marks())
        return unittest.TestSuite(tests)

    def owns_marks(self) -> bool:
        """Return whether only tests mark tests: Django marks those that its database cannot run."""
        return "django.db" not in sys.modules

    def canary(self, name: str, base: type, number: int) -> Any:
        """Return a test that must fail."""
        module, method = name.split("::")
        self.classes.add(module[: -len(".py")])

        def body(self: Any) -> None:
            value = {"answer": 41}
            if number % 2:
                raise AssertionError("must fail")
            self.assertEqual(value["answer"], 42)  # noqa: PT009 - the method that tests call

        return type("Canary", (base,), {method: body, "__module__": module[: -len(".py")]})(method)

    def bases_of(self, tests: "List[Any]") -> "List[type]":
        """Return the classes from which the tests' own classes derive, the most frequent first."""
        counted: Dict[type, int] = {}
        for test in tests:
            base = next(
                (each for each in type(test).__mro__ if self.file_of(each) not in self.trust.names), None
            )
            if base is not None and issubclass(base, unittest.TestCase):
                counted[base] = counted.get(base, 0) + 1
        return sorted(counted, key=lambda base: -counted[base])[:BASES]

    def file_of(self, cls: type) -> str:
        """Return the file of a class's module, below the root; the module's name where it lies elsewhere."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        inside = isinstance(file, str) and file.startswith(self.trust.workdir + "/")
        return os.path.relpath(file, self.trust.workdir) if inside else str(cls.__module__)  # type: ignore[arg-type]

    def identify(self, test: Any) -> str:
        cls = type(test)
        names = [*cls.__qualname__.split("."), str(getattr(test, "_testMethodName", ""))]
        return "::".join([self.file_of(cls), *names])

    def is_defined(self, name: str, test: Any) -> bool:
        """Return whether a test's class and its function come from its module or a decorator in it."""
        cls, function = type(test), self.functions[name]
        if not any(value is cls for value in list(vars(sys.modules[cls.__module__]).values())):
            return False
        return self.marks[name][0] or self.trust.is_defined(function)

    def title(self, test: Any) -> str:
        """Return what unittest prints for a test, by methods that the code under test did not define."""
        text = self.call(test, "__str__")
        line = self.call(test, "shortDescription")
        return "{}\n{}".format(text, line) if line else str(text)

    def call(self, test: Any, name: str) -> Any:
        for cls in type(test).__mro__:
            method = vars(cls).get(name)
            code = getattr(method, "__code__", None)
            if (
                method is not None
                and code is not None
                and (id(code) in self.trust.codes or not self.is_code_under_test(code))
            ):
                return method(test)
        return ""

    def on_skip(self, frame: Any) -> None:
        """Record whether a test called the code under test, which raised a SkipTest."""
        outer = False
        while frame is not None and frame.f_code is not _RUN:
            if self.is_code_under_test(frame.f_code):
                trusted = id(frame.f_code) in self.trust.codes
                if trusted:
                    break
                outer = True
            frame = frame.f_back
        self.skips.append(outer and frame is not None and frame.f_code is not _RUN)

    def on_start(self, test: Any) -> bool:
        """Return whether a test is a canary, which the program does not see."""
        name = self.tests.get(id(test), ("", None))[0]
        self.outcomes, self.skips = [], []
        own = vars(test).get(getattr(test, "_testMethodName", "")) if name else None
        function = self.functions.get(name)
        is_async = bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x180)  # a coroutine
        if name and (function is not function_of(test) or (own is not None and not is_async)):
            self.blame_replaced(name)
        return name in self.canaries

    def on_stop(self, test: Any) -> None:
        name = self.tests.get(id(test), ("", None))[0]
        if not name:
            return
        outcome = next((each for each in _WORST_FIRST if each in self.outcomes), "error")
        skip, expected = self.marks[name]
        excused = skip or (bool(self.skips) and not any(self.skips))
        if (outcome == "skipped" and not excused) or (outcome == "xfailed" and not expected):
            outcome = "failed"
        self.report(name, self.title(test), outcome)

    def is_canary(self, test: Any) -> bool:
        """Return whether a result is that of a canary or of its class."""
        name = self.tests.get(id(test), ("", None))[0]
        if name:
            return name in self.canaries
        return any("({}.".format(module) in str(test) for module in self.classes)

    def close(self) -> None:
        self.finish(marks=self.owns_marks())


class Result(unittest.TextTestResult):
    """unittest's result, which also reports to the parent."""

    session: Session

    def startTest(self, test: Any) -> None:
        if not self.session.on_start(test):
            super().startTest(test)

    def stopTest(self, test: Any) -> None:
        if not self.session.is_canary(test):
            super().stopTest(test)
        self.session.on_stop(test)

    def addSuccess(self, test: Any) -> None:
        if sys._getframe(1).f_code is not _RUN:
            self.session.send("tampered", "code other than unittest reported that a test passed")
        if not self.note("passed", test):
            super().addSuccess(test)

    def addFailure(self, test: Any, err: Any) -> None:
        if not self.note("failed", test):
            super().addFailure(test, err)

    def addError(self, test: Any, err: Any) -> None:
        if not self.note("error", test):
            super().addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if not self.note("skipped", test):
            super().addSkip(test, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        if not self.note("xfailed", test):
            super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        if not self.note("failed", test):
            super().addUnexpectedSuccess(test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.session.outcomes.append("failed")
        super().addSubTest(test, subtest, err)

    def note(self, outcome: str, test: Any) -> bool:
        """Record an outcome; return whether it is a canary's, which the program does not see."""
        if id(test) in self.session.tests or isinstance(getattr(test, "test_case", None), unittest.TestCase):
            self.session.outcomes.append(outcome)
        return self.session.is_canary(test)


class Runner(unittest.TextTestRunner):
    """unittest's runner, whose first suite is that of the session."""

    session: Any = None

    def run(self, test: Any) -> Any:
        session = Runner.session
        if session.started:  # tests of runners run suites of their own
            return super().run(test)
        Result.session = session
        self.resultclass = Result  # type: ignore[assignment]
        return super().run(session.suite(test))


def leaves_of(suite: Any) -> "Iterator[Any]":
    if isinstance(suite, unittest.BaseTestSuite):
        for test in suite:
            yield from leaves_of(test)
    else:
        yield suite


def function_of(test: Any) -> Any:
    """Return the function of a test's method, as its class has it."""
    name = getattr(test, "_testMethodName", "")
    found = next((vars(cls)[name] for cls in type(test).__mro__ if name in vars(cls)), None)
    return getattr(found, "__func__", found)


def marks_of(test: Any) -> "Tuple[bool, bool]":
    """Return whether a test or its class is marked: to be skipped, to fail."""
    owners = (type(test), function_of(test))
    skip = any(getattr(owner, "__unittest_skip__", False) for owner in owners)
    return bool(skip), any(getattr(owner, "__unittest_expecting_failure__", False) for owner in owners)
