"""The child of the trusted runner: runs pytest on trusted tests, in one process with the code under test.

Test modules and their imports from the tests' directories come from `hone_trusted`. Two canaries, tests that
must fail, run first and last under random names: code that makes all tests pass also makes them pass.
`hone_integrity` watches pytest itself.
"""

import gc
import os
import re
import sys
import types
from typing import Any, Dict, Iterator, List, Optional

import hone_excuses  # beside this file
import hone_integrity
import hone_pytest
import pytest
from _pytest import unittest as _unittest  # noqa: F401 - import before the repository is on the path
from hone_pytest import TestReport
from hone_trusted import Send, Trust, load_plugins, prepare_imports

CANARY = """
def {name}():
    value = {{"answer": 41}}
    {body}
"""
BODIES = ('assert value["answer"] == 42', 'raise AssertionError("must fail")')
SHOW_VALUES = "--assert=rewrite"  # pytest argument
ADDS_MARKS = re.compile(r"\b(?:add_marker|applymarker|own_markers)\b")  # in the text of the tests
DISABLED = ("cacheprovider", "pastebin", "stepwise", "junitxml", "faulthandler")


def run(job: "Dict[str, Any]", trust: Trust, send: Send, canaries: "List[str]") -> None:
    """Run the session, send its records with `send`, and exit the process."""
    exit_process, log = os._exit, print
    skipped: Dict[str, str] = dict.fromkeys(job["plugins"], "")
    framework = {}
    if not job["in_tree"]:
        skipped = load_plugins(job["plugins"])
        framework = dict(sys.modules)
        prepare_imports(job, trust)
    trust.copies.install()
    skipped = load_plugins(list(skipped))  # those that need the repository's own modules
    for name, reason in skipped.items():
        print(f"the plugin {name} is skipped: {reason}", flush=True)
    hone_pytest.load_named_plugins_only()
    trust.rewrite = hone_pytest.rewrite_asserts if SHOW_VALUES in job["command"] else None
    plugin = Plugin(trust, canaries, send, framework)
    arguments = [*hone_pytest.set_root(job["workdir"]), "-o", "addopts=", "--assert=plain", "-q"]
    arguments.append("--tb=short" if job["runs"] == 1 else "--tb=line")  # controls fail by the hundred
    for name in DISABLED:
        arguments += ["-p", f"no:{name}"]
    for name in job["plugins"]:
        arguments += [] if name in skipped else ["-p", name]
    # Existing files only: pytest runs nothing when one of its arguments is missing.
    files = [name for name in job["run_files"] if os.path.join(job["workdir"], name) in trust.sources]
    if hasattr(gc, "freeze"):  # Python 3.7
        gc.freeze()  # the garbage collector skips the modules imported so far
    status = 3
    try:
        status = int(pytest.main(arguments + list(job["command"]) + files, plugins=[plugin]))
    except BaseException as error:  # any exception of the code under test ends the session
        log("the test session was stopped by", type(error).__name__, error, flush=True)
    send("end", status)
    try:
        sys.stdout.flush()
    finally:
        exit_process(status)


class Plugin:
    """Report to the channel, load trusted modules and add canaries. Its hooks run before all others.

    Args:
        framework: the modules of the test framework that the repository's modules have replaced, by name.
    """

    def __init__(
        self,
        trust: Trust,
        canaries: "List[str]",
        send: Send,
        framework: "Dict[str, types.ModuleType]",
    ) -> None:
        self.trust, self.canaries, self.send, self.framework = trust, canaries, send, framework
        self.items: Dict[str, pytest.Item] = {}  # by test id
        self.raised_by_tests: Dict[str, Optional[bool]] = {}  # of tests that a skip or an xfail ended
        self.functions: Dict[str, Any] = {}  # test id -> code of its function, as collected
        self.watch: Optional[hone_integrity.Watch] = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        plugins = session.config.pluginmanager
        hooks = hone_pytest.hook_implementations(plugins)
        modules = {**sys.modules, **self.framework}
        self.watch = hone_integrity.Watch(
            plugins, hooks, self.trust.helpers, self.trust.copies.snapshots, modules
        )

    if hone_pytest.HAS_PATHLIB:

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makemodule(  # pyright: ignore[reportRedeclaration]
            self, module_path: Any, parent: Any
        ) -> "Optional[TrustedModule]":
            return self.collected_module(parent, str(module_path))

    else:

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makemodule(self, path: Any, parent: Any) -> "Optional[TrustedModule]":
            return self.collected_module(parent, str(path))

    def collected_module(self, parent: Any, path: str) -> "Optional[TrustedModule]":
        source = self.trust.sources.get(path)
        return None if source is None else self.trusted_module(parent, path, source)

    def trusted_module(self, parent: Any, path: str, source: bytes) -> "TrustedModule":
        module = hone_pytest.make_module(TrustedModule, parent, path)
        module.trust, module.text = self.trust, source
        return module

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: "List[pytest.Item]") -> None:
        planted: List[pytest.Item] = []
        for test, body in zip(self.canaries, BODIES):
            file, name = test.split("::")
            text = CANARY.format(name=name, body=body).encode()
            path = os.path.join(self.trust.workdir, file)
            planted += session.genitems(self.trusted_module(session, path, text))
        items.insert(0, planted[0])
        items.extend(planted[1:])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.check(thorough=True)
        self.trust.modules.check()
        self.trust.copies.keep()
        self.items = {item.nodeid: item for item in session.items}
        self.functions = {item.nodeid: code_of(item) for item in session.items}
        for item in session.items:
            if item.nodeid.split("::")[0] in self.trust.names and not self.is_defined(item):
                self.send("tampered", f"the function of {item.nodeid} was replaced before it ran")
        self.send("collected", list(self.functions))

    def is_defined(self, item: pytest.Item) -> bool:
        """Return whether a test's function comes from its module or from a decorator in it."""
        method = getattr(item, "obj", None)
        return code_of(item) is None or self.trust.is_defined(getattr(method, "__func__", method))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if code_of(item) is not self.functions.get(item.nodeid) or "runtest" in vars(item):
            self.send("tampered", f"the function of {item.nodeid} was replaced before it ran")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> "Iterator[None]":
        yield  # pytest's plugin for unittest sets the exception
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception)):
            code = hone_excuses.raising_code(error, self.trust.workdir)
            configures = code is not None and os.path.basename(code.co_filename) == "conftest.py"
            ours = configures or id(code) in self.trust.codes
            self.raised_by_tests[item.nodeid] = None if code is None else ours

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if type(report) is not TestReport:
            self.send("phase", report.nodeid, "subtest", str(report.outcome))
            return
        outcome: str = report.outcome
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            outcome = "xfailed" if self.is_expected_to_fail(report) else "failed"
        elif outcome == "skipped" and self.raised_by_tests.get(report.nodeid) is False:
            outcome = "failed"
        self.send("phase", report.nodeid, report.when, outcome)
        self.check(thorough=report.when == "teardown")

    def is_expected_to_fail(self, report: Any) -> bool:
        """Return whether a mark or a call in the tests, not in the code under test, makes a test xfailed."""
        if self.raised_by_tests.get(report.nodeid):
            return True
        item = self.items.get(report.nodeid)
        return item is not None and hone_excuses.has_xfail(
            item, added=bool(ADDS_MARKS.search(self.trust.words))
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: "pytest.Session") -> None:
        self.check(thorough=True)
        self.trust.modules.check()
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # hide the canaries' failures in the log
            failed = reporter.stats.get("failed", [])
            failed[:] = [report for report in failed if report.nodeid not in self.canaries]

    def check(self, *, thorough: bool) -> None:
        changed = self.watch.changed(thorough=thorough) if self.watch else None
        if changed:
            self.send("tampered", f"the code under test replaced {changed}")


def code_of(item: "pytest.Item") -> Any:
    return getattr(getattr(item, "obj", None), "__code__", None)


class TrustedModule(pytest.Module):
    """A test module executed from given text."""

    trust: Trust
    text: bytes

    def _getobj(self) -> types.ModuleType:
        try:
            return self.trust.load(hone_pytest.path_of(self), self.text)
        except (Exception, SystemExit) as error:
            raise self.CollectError(f"{type(error).__name__} while it was imported: {error}") from error
