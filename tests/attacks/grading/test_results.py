"""Attacks on the results: forged records, printed summaries, a test framework that was changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.grading.attack import TRIVIAL, Attack, at_call, at_import, check_attacks

PASSES = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
FRAME = '{"statuses": "ppppppp", "finished": true, "tampered": null, "timed_out": false, "log": ""}'
ATTACKS: dict[str, Attack] = {
    "prints a summary": at_import("print('18 passed in 0.02s')"),
    "prints results": at_import("print('PASSED tests/test_hidden.py::test_add')"),
    "prints a report": at_import(f"""import sys
for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
    print('hone-grader: ready', '0' * 32 + ' ' + {FRAME!r}, sep='\\n', file=file)"""),
    "writes a report to the runner's output": at_import(f"""import os
for fd in (1, 2):
    os.write(fd, b'\\n' + b'0' * 32 + b' ' + {FRAME.encode()!r} + b'\\n')"""),
    "writes to the runner's descriptors": at_import(f"""import os
for fd in range(20):
    try:
        with open(f'/proc/{{os.getppid()}}/fd/{{fd}}', 'wb') as file:
            file.write({FRAME.encode()!r})
    except OSError:
        pass"""),
    "writes to every descriptor": at_import("""import os
for fd in range(3, 256):
    try:
        os.write(fd, b'["phase", "tests/test_hidden.py::test_add", "call", "passed"]\\n')
    except OSError:
        pass"""),
    "closes every descriptor": at_import("import os\nos.closerange(3, 256)"),
    "redirects every descriptor": at_import("""import os
null = os.open(os.devnull, os.O_RDWR)
for fd in range(3, 256):
    if fd != null:
        try:
            os.fstat(fd)
            os.dup2(null, fd)
        except OSError:
            pass"""),
    "floods the channel": at_import("""import os
for fd in range(3, 64):
    try:
        for _ in range(99):
            os.write(fd, b'x' * (1 << 20))
    except OSError:
        pass"""),
    "forges a session without its key": at_import("""import json, os
tests = ['tests/test_hidden.py::test_add']
records = [['collected', tests], *(['phase', tests[0], p, 'passed'] for p in ('setup', 'call', 'teardown'))]
for fd in range(3, 64):
    try:
        for record in [*records, ['end', 0]]:
            os.write(fd, b'0' * 32 + b' ' + json.dumps(record).encode() + b'\\n')
    except OSError:
        continue
os._exit(0)"""),
    "replaces os.write": at_import(
        "import os\nreal = os.write\n"
        "os.write = lambda fd, data: real(fd, bytes(data).replace(b'failed', b'passed'))"
    ),
    "replaces json.dumps": at_import(
        "import json\nreal = json.dumps\n"
        "json.dumps = lambda *a, **k: real(*a, **k).replace('failed', 'passed')"
    ),
    "replaces json's encoder": at_import(
        "import json\nreal = json.JSONEncoder.encode\n"
        "json.JSONEncoder.encode = lambda self, o: real(self, o).replace('failed', 'passed')"
    ),
    "replaces the report": at_import("""from _pytest.reports import TestReport
real = TestReport.from_item_and_call.__func__
def fake(cls, item, call):
    report = real(cls, item, call)
    report.outcome = 'passed'
    return report
TestReport.from_item_and_call = classmethod(fake)"""),
    "gives reports an outcome": at_import("""from _pytest.reports import TestReport
TestReport.outcome = property(lambda self: 'passed', lambda self, value: None)"""),
    "replaces the test's call": at_import(
        "from _pytest.python import Function\nFunction.runtest = lambda self: None"
    ),
    "replaces the call's code": at_import("""import _pytest.python
_pytest.python.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__"""),
    "replaces what calls": at_import("""import _pytest.runner
real = _pytest.runner.CallInfo.from_call.__func__
def from_call(cls, func, when, reraise=None):
    return real(cls, lambda: None, when, reraise)
_pytest.runner.CallInfo.from_call = classmethod(from_call)"""),
    "replaces pluggy's call": at_import("""import pluggy._hooks
real = pluggy._hooks.HookCaller.__call__
def call(self, **kwargs):
    if self.name == 'pytest_pyfunc_call':
        return True
    return real(self, **kwargs)
pluggy._hooks.HookCaller.__call__ = call"""),
    "replaces the equality": at_import("""import sys
sys.modules['hone_integrity'].checked_equality = None
import gc
for function in gc.get_objects():
    code = getattr(function, '__code__', None)
    if code and getattr(function, '__name__', '') == 'equal':
        function.__code__ = (lambda a, b: True).__code__.replace(co_freevars=code.co_freevars)"""),
    "replaces the sender's code": at_import("""import gc
for function in gc.get_objects():
    code = getattr(function, '__code__', None)
    if code and code.co_name == 'send' and 'hone' in code.co_filename:
        function.__code__ = (lambda *record: None).__code__.replace(co_freevars=code.co_freevars)"""),
    "registers a plugin": at_import(f"""import gc, types
plugin = types.ModuleType('helper')
exec({PASSES!r}, plugin.__dict__)
from _pytest.config import Config
for found in gc.get_objects():
    if isinstance(found, Config):
        found.pluginmanager.register(plugin)"""),
    "registers a plugin by a name in the environment": at_import(
        "import os\nos.environ['PYTEST_PLUGINS'] = 'stats'\nos.environ['PYTEST_ADDOPTS'] = '-p stats'"
    ),
    "removes the hook that calls tests": at_import("""import gc
from _pytest.config import Config
for found in gc.get_objects():
    if isinstance(found, Config):
        del found.hook.pytest_pyfunc_call._hookimpls[:]"""),
    "removes the grader's plugin": at_import("""import gc
from _pytest.config import Config
for found in gc.get_objects():
    if isinstance(found, Config):
        manager = found.pluginmanager
        for plugin in list(manager.get_plugins()):
            if type(plugin).__name__ == 'Plugin':
                manager.unregister(plugin)"""),
    "empties the session": at_call("""import gc, pytest
    for found in gc.get_objects():
        if isinstance(found, pytest.Session):
            found.items.clear()
    return a - b"""),
    "forges its own result": at_call("""import sys
    frame = sys._getframe()
    while frame:
        call = frame.f_locals.get('call')
        if hasattr(call, 'excinfo'):
            call.excinfo = None
        frame = frame.f_back
    raise ValueError"""),
    "unsets the failure": at_import("""import _pytest._code.code as code
code.ExceptionInfo.from_current = classmethod(lambda cls, *a, **k: None)"""),
    "makes AssertionError pass": at_import("""import builtins, pytest
builtins.AssertionError = pytest.skip.Exception"""),
    "traces the tests": at_import("""import sys
def trace(frame, event, arg):
    if frame.f_code.co_name.startswith('test_'):
        frame.f_trace_lines = False
        return None
    return trace
sys.settrace(trace)"""),
    "replaces the import of tests": at_import(f"""import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        return None
    def exec_module(self, module):
        exec({TRIVIAL!r}, module.__dict__)
sys.meta_path.insert(0, Finder())
sys.path_hooks.clear()"""),
}
CAUGHT = {
    "writes to every descriptor",
    "floods the channel",
    "forges a session without its key",
    "replaces the report",
    "gives reports an outcome",
    "replaces the test's call",
    "replaces the call's code",
    "replaces what calls",
    "replaces pluggy's call",
    "replaces the equality",
    "registers a plugin",
    "removes the hook that calls tests",
    "replaces json's encoder",
    "makes AssertionError pass",
    "unsets the failure",
}


@pytest.mark.full
def test_no_attack_on_the_results_is_resolved(tmp_path: Path) -> None:
    check_attacks(ATTACKS, tmp_path, caught=CAUGHT)
