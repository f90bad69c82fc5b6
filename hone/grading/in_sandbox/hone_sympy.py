"""The session of sympy's own runner, `bin/test`: functions `test_*` of files, one after the other.

Each file is executed in a namespace without a package, as sympy's runner does; its functions run in the order
of their lines, with the same seed before each.
"""

import inspect
import os
import random
import re
import sys
import traceback
import types
import warnings
from typing import Any, Dict, Iterator, List, Tuple

from hone_suites import Recorder, prepare  # beside this file
from hone_trusted import Send, Trust

SEED = 1
RUNNERS = ("sympy/testing/runtests.py", "sympy/utilities/runtests.py")  # since 1.6, before
# Names of the exceptions by which the decorators of sympy's tests tell what became of a test.
_ENDS = {"Skipped": "skipped", "XFail": "xfailed", "XPass": "failed"}
_CANARY = """
def {name}():
    value = {{"answer": 41}}
    assert value["answer"] == 42
"""


def run(job: "Dict[str, Any]", trust: Trust, send: Send, canaries: "List[str]") -> None:
    """Run the files, send their records with `send`, and exit the process."""
    exit_process, log, show = os._exit, print, traceback.print_exc
    session = Recorder(job, trust, send, canaries)
    prepare(job, trust)
    status = 3
    try:
        tests = list(canary(trust, canaries[0]))
        for file in job["run_files"]:
            if session.is_selected(file):
                tests += collect(session, file)
        tests += canary(trust, canaries[1])
        session.begin([test for test, _ in tests])
        filter_warnings(job["workdir"])
        for test, function in tests:
            outcome = run_function(function, shown=test not in canaries)
            if outcome in ("failed", "error") and test not in canaries:
                log("____", test, flush=True)
            session.report(test, function.__name__, outcome)
        status = 1
    except BaseException as error:  # any exception of the code under test ends the session
        log("the test session was stopped by", type(error).__name__, error, flush=True)
        show()
    session.finish()
    send("end", status)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        exit_process(status)


def canary(trust: Trust, test: str) -> "Iterator[Tuple[str, Any]]":
    """Yield a test that must fail."""
    file, name = test.split("::")
    module = execute(trust, file, _CANARY.format(name=name).encode())
    yield test, getattr(module, name)


def execute(trust: Trust, file: str, text: bytes) -> types.ModuleType:
    """Execute a trusted text in a module of its own."""
    path = os.path.join(trust.workdir, file)
    code = trust.compile(text, path)
    module = types.ModuleType(os.path.basename(file)[: -len(".py")])
    module.__file__ = path
    trust.modules.execute(module, code, text)
    trust.remember(module)
    trust.define(module)
    return module


def collect(session: Recorder, file: str) -> "List[Tuple[str, Any]]":
    """Return the tests of a file, by their ids; none for a file that cannot be executed."""
    trust = session.trust
    text = trust.sources.get(os.path.join(trust.workdir, file))
    if text is None:
        return []
    try:
        module = execute(trust, file, text)
    except Exception:
        traceback.print_exc()
        return []
    clear_cache()
    if getattr(module, "disabled", False):
        return []
    found = []
    for name, value in list(vars(module).items()):
        if name.startswith("test_") and (inspect.isfunction(value) or inspect.ismethod(value)):
            code = inspect.unwrap(value).__code__
            if code.co_filename == module.__file__:
                if not trust.is_defined(value):
                    session.blame_replaced("{}::{}".format(file, name))
                found.append((code.co_firstlineno, name, value))
    return [
        ("{}::{}".format(file, name), value) for _, name, value in sorted(found, key=lambda each: each[0])
    ]


def clear_cache() -> None:
    module = sys.modules.get("sympy.core.cache")
    if module is not None:
        module.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]


def filter_warnings(workdir: str) -> None:
    """Make deprecated calls of sympy errors, as its runner does."""
    text = ""
    for name in RUNNERS:
        try:
            with open(os.path.join(workdir, name), encoding="utf-8") as file:
                text += file.read()
        except OSError:
            continue
    if "module='sympy.*'" in text:
        warnings.filterwarnings("error", ".*", DeprecationWarning, module="sympy.*")
    kind = getattr(sys.modules.get("sympy.utilities.exceptions"), "SymPyDeprecationWarning", None)
    if kind is not None and re.search(r"simplefilter\(.error., SymPyDeprecationWarning", text):
        warnings.simplefilter("error", kind)


def run_function(function: Any, *, shown: bool) -> str:
    """Return how a test ended.

    Args:
        shown: print the traceback of a failure.
    """
    try:
        if getattr(function, "_slow", False):
            return "skipped"
        random.seed(SEED)
        if inspect.isgeneratorfunction(function):
            for call, *arguments in function():
                call(*arguments)
        else:
            function()
    except KeyboardInterrupt:
        raise
    except Exception as error:
        outcome = _ENDS.get(type(error).__name__)
        if outcome is None:
            if shown:
                traceback.print_exc()
            outcome = "failed" if type(error) is AssertionError else "error"
        return outcome
    return "passed"
