"""The child of the trusted runner: runs pytest on trusted tests, in one process with the code under test.

Test modules are compiled from text that was read before any code of the repository ran, so rewriting them on disk
changes nothing. Two canaries, tests that must fail, run first and last under random names: whoever makes tests pass
wholesale makes them pass too. `hone_integrity` watches pytest itself.
"""

import ast
import json
import os
import random
import sys
import types

import hone_integrity
import pytest
from _pytest import unittest as _pytest_unittest  # noqa: F401 - loaded here, before the repository is on the path
from _pytest.reports import TestReport

CANARY = """
def %(name)s():
    value = {"answer": 41}
%(body)s
"""
BODIES = ('    assert value["answer"] == 42', '    raise AssertionError("must fail")')
DISABLED = ("cacheprovider", "pastebin", "stepwise", "junitxml", "faulthandler")


def name_canaries():
    """Ids of the canaries, new in every run."""
    names = random.SystemRandom()
    stems = ["%08x" % names.getrandbits(32) for _ in BODIES]
    return ["test_%s.py::test_%s" % (stem, stem) for stem in stems]


def run(job, sources, key, canaries, channel):
    """Run the session, send its records to the descriptor `channel`, and end the process."""
    send = sender(channel, key)
    plugin = Plugin(job["workdir"], sources, canaries, send)
    arguments = ["--rootdir", job["workdir"], "-o", "addopts=", "--assert=plain", "--tb=short", "-q"]
    for name in DISABLED:
        arguments += ["-p", "no:" + name]
    # Only what exists is named: pytest runs nothing at all when one of its arguments is missing.
    files = [name for name in job["run_files"] if os.path.join(job["workdir"], name) in sources]
    status = 3
    try:
        status = int(pytest.main(arguments + list(job["command"]) + files, plugins=[plugin]))
    except (
        BaseException
    ) as error:  # SystemExit of the code under test, too, must not end the run without a word
        print("the test session was broken off by", type(error).__name__, error, flush=True)
    send("end", status)
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)


def sender(channel, key, *, write=os.write, dumps=json.dumps):
    def send(*record):
        line = key + b" " + dumps(record).encode() + b"\n"
        while line:
            line = line[write(channel, line) :]

    return send


class Plugin:
    """Reports to the channel, loads trusted modules, plants canaries. Its hooks run before all others."""

    def __init__(self, workdir, sources, canaries, send):
        self.workdir, self.sources, self.canaries, self.send = workdir, sources, canaries, send
        self.codes = set()  # code objects of the trusted test modules
        self.functions = {}  # id -> code of its test function, as collected
        self.watch = None
        self.equality = hone_integrity.checked_equality(lambda evidence: send("tampered", evidence))

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self):
        sys.path[:] = [self.workdir] + [entry for entry in sys.path if entry not in ("", self.workdir)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session):
        self.watch = hone_integrity.Watch(session.config.pluginmanager)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path, parent):
        source = self.sources.get(str(module_path))
        return None if source is None else self.trusted_module(parent, module_path, source)

    def trusted_module(self, parent, path, source):
        module = TrustedModule.from_parent(parent, path=path)
        module.plugin, module.source = self, source
        return module

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session, items):
        planted = []
        for test, body in zip(self.canaries, BODIES):
            file, name = test.split("::")
            path = session.config.rootpath / file
            module = self.trusted_module(session, path, (CANARY % {"name": name, "body": body}).encode())
            planted += session.genitems(module)
        items.insert(0, planted[0])
        items.extend(planted[1:])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session):
        self.check(thorough=True)
        self.functions = {item.nodeid: code_of(item) for item in session.items}
        for test, code in self.functions.items():
            if test.split("::")[0] in self.run_files() and code is not None and id(code) not in self.codes:
                self.send("tampered", "the function of %s was replaced before it ran" % test)
        self.send("collected", list(self.functions))

    def run_files(self):
        return {os.path.relpath(path, self.workdir) for path in self.sources}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if code_of(item) is not self.functions.get(item.nodeid) or "runtest" in vars(item):
            self.send("tampered", "the function of %s was replaced before it ran" % item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        if type(report) is not TestReport:
            self.send("phase", report.nodeid, "subtest", str(report.outcome))
            return
        outcome = report.outcome
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            # pytest.xfail() called by the code under test is a failure; the mark on a trusted test is not
            outcome = "xfailed" if "xfail" in report.keywords else "failed"
        self.send("phase", report.nodeid, report.when, outcome)
        self.check(thorough=report.when == "teardown")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        self.check(thorough=True)

    def check(self, thorough):
        if self.watch is None:
            return
        changed = self.watch.changed(thorough)
        if changed:
            self.send("tampered", "the code under test replaced " + changed)


def code_of(item):
    return getattr(getattr(item, "obj", None), "__code__", None)


class TrustedModule(pytest.Module):
    """A test module executed from given text, under the name and path that pytest's default import mode gives it."""

    plugin = source = None

    def _getobj(self):
        path = str(self.path)
        name, root = module_name(path)
        if root not in sys.path:
            sys.path.insert(0, root)
        if "." in name:
            __import__(name.rpartition(".")[0])
        code = compile_trusted(self.source, path)
        self.plugin.codes |= set(map(id, nested_codes(code)))
        module = types.ModuleType(name)
        module.__file__ = path
        module.__package__ = name.rpartition(".")[0]
        module.__dict__[hone_integrity.EQUAL] = self.plugin.equality
        self.code = code  # keeps the ids in `codes` from being used again
        sys.modules[name] = module
        try:
            exec(code, module.__dict__)  # noqa: S102 - importing a trusted module is what this does
        except SystemExit as error:
            raise self.CollectError("the module under test called exit(%s)" % error.code) from error
        except Exception as error:
            raise self.CollectError(
                str(self._repr_failure_py(pytest.ExceptionInfo.from_current()))
            ) from error
        return module


def module_name(path):
    """(dotted name, directory for sys.path): the first directory upwards that is not a package is the root."""
    folder, file = os.path.split(path)
    name = file[:-3]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = package + "." + name
    return name, folder


def compile_trusted(source, path):
    """Compile a test module with the comparisons inside its assertions made by `hone_integrity`."""
    tree = ast.parse(source, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.test = CheckComparisons().visit(node.test)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class CheckComparisons(ast.NodeTransformer):
    """`a == b` -> EQUAL(a, b)"""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            name = ast.copy_location(ast.Name(hone_integrity.EQUAL, ast.Load()), node)
            return ast.copy_location(ast.Call(name, [node.left, *node.comparators], []), node)
        return node


def nested_codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)
