"""The child of the trusted runner: runs pytest on trusted tests, in one process with the code under test.

Test modules and their imports from the tests' directories are compiled from text that was read before any
code of the repository ran, so rewriting them on disk has no effect. Two canaries, tests that must fail, run
first and last under random names: code that makes all tests pass also makes them pass. `hone_integrity`
watches pytest itself.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import random
import re
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Callable, Iterator

import hone_excuses  # beside this file
import hone_integrity
import hone_names
import pytest
from _pytest import unittest as _unittest  # noqa: F401 - import before the repository is on the path
from _pytest.assertion.rewrite import rewrite_asserts
from _pytest.reports import TestReport

Send = Callable[..., None]

CANARY = """
def {name}():
    value = {{"answer": 41}}
    {body}
"""
BODIES = ('assert value["answer"] == 42', 'raise AssertionError("must fail")')
# The runner's own test framework, which the repository must not replace.
KEPT = (
    "pytest", "_pytest", "pluggy", "iniconfig",
    "hone_session", "hone_integrity", "hone_names", "hone_excuses", "hone_runner",
)  # fmt: skip
SHOW_VALUES = "--assert=rewrite"  # pytest argument
ADDS_MARKS = re.compile(r"\b(?:add_marker|applymarker|own_markers)\b")  # in the text of the tests
DISABLED = ("cacheprovider", "pastebin", "stepwise", "junitxml", "faulthandler")


def name_canaries() -> list[str]:
    """Return random ids for the canaries."""
    names = random.SystemRandom()
    stems = [f"{names.getrandbits(32):08x}" for _ in BODIES]
    return [f"test_{stem}.py::test_{stem}" for stem in stems]


def run(
    job: dict[str, Any],
    sources: dict[str, bytes],
    key: bytes,
    canaries: list[str],
    channel: int,
    outside: Any,
) -> None:
    """Run the session, send its records to the descriptor `channel`, and exit the process.

    Args:
        outside: the finder that hides the repository, until the session replaces it.
    """
    exit_process, log = os._exit, print
    send = sender(channel, key)
    skipped = load_plugins(job["plugins"])
    plugin = Plugin(job["workdir"], sources, canaries, send)
    plugin.show_values = SHOW_VALUES in job["command"]
    sys.meta_path.remove(outside)
    prepare_imports(job, plugin)
    skipped = load_plugins(list(skipped))  # those that need the repository's own modules
    for name, reason in skipped.items():
        print(f"the plugin {name} is skipped: {reason}", flush=True)
    arguments = ["--rootdir", job["workdir"], "-o", "addopts=", "--assert=plain", "-q"]
    arguments.append("--tb=short" if job["runs"] == 1 else "--tb=line")  # controls fail by the hundred
    arguments.append("--continue-on-collection-errors")
    for name in DISABLED:
        arguments += ["-p", f"no:{name}"]
    for name in job["plugins"]:
        arguments += [] if name in skipped else ["-p", name]
    # Existing files only: pytest runs nothing when one of its arguments is missing.
    files = [name for name in job["run_files"] if os.path.join(job["workdir"], name) in sources]
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


def load_plugins(names: list[str]) -> dict[str, str]:
    """Import installed plugins; return those that cannot be imported, with the reason."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def prepare_imports(job: dict[str, Any], plugin: Plugin) -> None:
    """Make the repository's packages importable, first of all, and load trusted modules from their text.

    Modules that the runner imported and the repository or its requirements also provide are unloaded, so
    that tests get the repository's version.
    """
    first = [*job["paths"], job["workdir"]]
    runner = {
        os.path.dirname(str(hone_integrity.__file__)),
        os.path.dirname(os.path.dirname(pytest.__file__)),
    }
    rest = [entry for entry in sys.path if entry not in ("", job["workdir"], *job["paths"])]
    sys.path[:] = [*dict.fromkeys(first), *sorted(rest, key=lambda entry: entry in runner)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*dict.fromkeys(first), *job["sites"]])
    sys.meta_path.insert(0, TrustedFinder(plugin))  # pyright: ignore[reportArgumentType]
    # Python processes that tests start need their `site`, which this one did without at its start
    flags: Any = vars(subprocess)
    given = flags["_args_from_interpreter_flags"]
    flags["_args_from_interpreter_flags"] = lambda: [flag for flag in given() if flag != "-S"]
    sys.warnoptions += filter(None, os.environ.get("PYTHONWARNINGS", "").split(","))
    plugins = [name.partition(".")[0] for name in job["plugins"]]
    kept = {*KEPT, *getattr(sys, "stdlib_module_names", ()), *plugins}
    theirs = [folder for folder in (*first, *job["sites"]) if os.path.isdir(folder)]
    provided = {name.partition(".")[0] for folder in theirs for name in os.listdir(folder)}
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top in provided and top not in kept:
            del sys.modules[name]


class TrustedFinder:
    """Find modules of trusted files; their code comes from the text that was read before."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in self.plugin.sources:
            return None
        spec.loader = TrustedLoader(name, spec.origin, self.plugin)
        spec.cached = None
        return spec


class TrustedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, plugin: Plugin) -> None:
        super().__init__(name, path)
        self.plugin = plugin

    def get_data(self, path: str) -> bytes:
        return self.plugin.sources[self.path]

    def get_code(self, fullname: str) -> types.CodeType:
        code = compile_trusted(self.get_data(self.path), self.path)
        self.plugin.trust(code)
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        self.plugin.modules.execute(module, self.get_code(module.__name__), self.get_data(self.path))
        self.plugin.remember(module)


def sender(channel: int, key: bytes) -> Send:
    """Return a function that writes records to the channel; it keeps its own references to os and json."""
    write, dumps = os.write, json.dumps

    def send(*record: Any) -> None:
        line = key + b" " + dumps(record).encode() + b"\n"
        while line:
            line = line[write(channel, line) :]

    return send


class Plugin:
    """Report to the channel, load trusted modules and add canaries. Its hooks run before all others."""

    def __init__(self, workdir: str, sources: dict[str, bytes], canaries: list[str], send: Send) -> None:
        self.workdir, self.sources, self.canaries, self.send = workdir, sources, canaries, send
        self.trusted = {os.path.relpath(path, workdir) for path in sources}
        self.show_values = False  # failing assertions show their values
        self.codes: set[int] = set()  # ids of the code objects of trusted modules
        self.kept: list[types.CodeType] = []  # kept alive, so that no id in `codes` is reused
        self.defined: dict[int, Any] = {}  # functions of trusted modules, by id, kept alive
        self.items: dict[str, pytest.Item] = {}  # by test id
        self.raised_by_tests: dict[str, bool | None] = {}  # of tests that a skip or an xfail ended
        self.functions: dict[str, Any] = {}  # test id -> code of its function, as collected
        self.watch: hone_integrity.Watch | None = None
        self.helpers: dict[int, hone_integrity.Snapshot] = {}  # of helper modules, by id of their names
        self.words = b"\n".join(sources.values()).decode("utf-8", "replace")
        self.equality = hone_integrity.checked_equality(
            lambda evidence: send("tampered", evidence), self.is_named_by_tests
        )
        hone_integrity.check_unittest(self.equality)
        self.modules = hone_names.Modules(
            {re.sub(r"\.__init__$", "", module_name(path)[0]): path for path in sources},
            self.equality,
            # pytest rewrites the assertions of runs that make tasks, and loads conftest.py for it
            lambda evidence: None if self.show_values else send("tampered", evidence),
        )

    def trust(self, code: types.CodeType) -> None:
        nested = list(hone_names.nested_codes(code))
        self.codes.update(map(id, nested))
        self.kept += nested

    def remember(self, module: types.ModuleType) -> None:
        """Record the functions of a helper module; tests must restore those that they replace."""
        names = vars(module)
        functions = {
            name: value
            for name, value in list(names.items())
            # `type`, because a proxy object may raise on any attribute access
            if type(value) is types.FunctionType and id(value.__code__) in self.codes
        }
        self.helpers[id(names)] = hone_integrity.Snapshot(module.__name__, names, functions)  # or reloaded

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.watch = hone_integrity.Watch(session.config.pluginmanager, self.helpers)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: Any) -> TrustedModule | None:
        source = self.sources.get(str(module_path))
        return None if source is None else self.trusted_module(parent, module_path, source)

    def trusted_module(self, parent: Any, path: Path, source: bytes) -> TrustedModule:
        module = TrustedModule.from_parent(parent, path=path)
        module.plugin, module.text = self, source
        return module

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        planted: list[pytest.Item] = []
        for test, body in zip(self.canaries, BODIES):
            file, name = test.split("::")
            text = CANARY.format(name=name, body=body).encode()
            planted += session.genitems(self.trusted_module(session, session.config.rootpath / file, text))
        items.insert(0, planted[0])
        items.extend(planted[1:])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.check(thorough=True)
        self.modules.check()
        self.items = {item.nodeid: item for item in session.items}
        self.functions = {item.nodeid: code_of(item) for item in session.items}
        for item in session.items:
            if item.nodeid.split("::")[0] in self.trusted and not self.is_defined(item):
                self.send("tampered", f"the function of {item.nodeid} was replaced before it ran")
        self.send("collected", list(self.functions))

    def is_named_by_tests(self, cls: type, file: str) -> bool:
        """Return whether the tests themselves use a class that equals everything, such as mock.ANY.

        Args:
            file: source file of its equality.
        """
        inside = file.startswith(self.workdir + "/") and file not in self.sources
        return not inside and cls.__name__.lstrip("_") in self.words

    def is_defined(self, item: pytest.Item) -> bool:
        """Return whether a test's function comes from its module or from a decorator in it."""
        code = code_of(item)
        method = getattr(item, "obj", None)
        function = getattr(method, "__func__", method)
        return code is None or id(code) in self.codes or id(function) in self.defined

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if code_of(item) is not self.functions.get(item.nodeid) or "runtest" in vars(item):
            self.send("tampered", f"the function of {item.nodeid} was replaced before it ran")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        yield  # pytest's plugin for unittest sets the exception
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception)):
            code = hone_excuses.raising_code(error, self.workdir)
            configures = code is not None and os.path.basename(code.co_filename) == "conftest.py"
            self.raised_by_tests[item.nodeid] = None if code is None else configures or id(code) in self.codes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: TestReport) -> None:
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

    def is_expected_to_fail(self, report: TestReport) -> bool:
        """Return whether a mark or a call in the tests, not in the code under test, makes a test xfailed."""
        if self.raised_by_tests.get(report.nodeid):
            return True
        item = self.items.get(report.nodeid)
        return item is not None and hone_excuses.has_xfail(item, added=bool(ADDS_MARKS.search(self.words)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.check(thorough=True)
        self.modules.check()
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # hide the canaries' failures in the log
            failed = reporter.stats.get("failed", [])
            failed[:] = [report for report in failed if report.nodeid not in self.canaries]

    def check(self, *, thorough: bool) -> None:
        changed = self.watch.changed(thorough=thorough) if self.watch else None
        if changed:
            self.send("tampered", f"the code under test replaced {changed}")


def code_of(item: pytest.Item) -> Any:
    return getattr(getattr(item, "obj", None), "__code__", None)


class TrustedModule(pytest.Module):
    """A test module executed from given text, under the name of pytest's default import mode."""

    plugin: Plugin
    text: bytes

    def _getobj(self) -> types.ModuleType:
        path = str(self.path)
        name, root = module_name(path)
        package = name.rpartition(".")[0]
        if root not in sys.path:
            sys.path.insert(0, root)
        try:
            if package:
                __import__(package)
            code = compile_trusted(self.text, path, show_values=self.plugin.show_values)
            self.plugin.trust(code)
            module = sys.modules[name] = types.ModuleType(name)
            module.__file__, module.__package__ = path, package
            self.plugin.sources.setdefault(path, self.text)
            module.__loader__ = TrustedLoader(name, path, self.plugin)
            module.__spec__ = ModuleSpec(name, module.__loader__, origin=path)
            self.plugin.modules.execute(module, code, self.text)
            if package:  # as an import does
                setattr(sys.modules[package], name.rpartition(".")[2], module)
            for function in functions_of(module):
                self.plugin.defined[id(function)] = function
        except (Exception, SystemExit) as error:
            raise self.CollectError(f"{type(error).__name__} while it was imported: {error}") from error
        return module


def functions_of(module: types.ModuleType) -> Iterator[Any]:
    """Yield possible tests of a module: its values, and those of its classes and their bases."""
    for value in list(vars(module).values()):
        yield value
        if isinstance(value, type):
            for base in value.__mro__:
                yield from list(vars(base).values())


def module_name(path: str) -> tuple[str, str]:
    """Return (dotted name, directory for sys.path): the nearest parent that is not a package."""
    folder, file = os.path.split(path)
    name = file[: -len(".py")] if file.endswith(".py") else file
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    return name, folder


def compile_trusted(text: bytes, path: str, *, show_values: bool = False) -> types.CodeType:
    """Compile a test module whose assertions compare with `hone_integrity`'s equality, and whose imports are
    checked by `hone_names`.

    With `show_values`, pytest rewrites the assertions instead: for runs that make tasks, not for grading.
    """
    tree = ast.parse(text, path)
    if show_values:
        rewrite_asserts(tree, text)
        return compile(tree, path, "exec", dont_inherit=True)
    hone_names.CheckImports().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.test = CheckComparisons().visit(node.test)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class CheckComparisons(ast.NodeTransformer):
    """`a == b` -> EQUAL(a, b)"""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            name = ast.copy_location(ast.Name(hone_integrity.EQUAL, ast.Load()), node)
            return ast.copy_location(ast.Call(name, [node.left, *node.comparators], []), node)
        return node
