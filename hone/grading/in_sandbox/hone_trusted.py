"""Load the trusted modules of a test process from text that was read before any code of the repository ran.

Rewriting them on disk has no effect. Nothing here depends on a test framework. What goes wrong in the
runner's own code is reported as such and raised again; the grader, not this process, decides what it means.
"""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import hone_copies  # beside this file
import hone_integrity
import hone_names
from hone_outside import Outside

Send = Callable[..., None]

# The runner's own test framework, which the repository must not replace.
KEPT = ("pytest", "_pytest", "pluggy", "iniconfig")


def sender(channel: int, key: bytes) -> Send:
    """Return a function that writes records to the channel; it keeps its own references to os and json."""
    write, dumps = os.write, json.dumps

    def send(*record: Any) -> None:
        line = key + b" " + dumps(record).encode() + b"\n"
        while line:
            line = line[write(channel, line) :]

    return send


def load_plugins(names: "List[str]") -> "Dict[str, str]":
    """Import installed plugins; return those that cannot be imported, with the reason."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def prepare_imports(job: "Dict[str, Any]", trust: "Trust") -> None:
    """Make the repository's packages importable, first of all, and load trusted modules from their text.

    Modules that the runner imported and the repository or its requirements also provide are unloaded, so
    that tests get the repository's version; the runner's own framework is one only where the repository had
    it before the patch.
    """
    first = [*job["paths"], job["workdir"]]
    runner = {os.path.dirname(str(hone_integrity.__file__)), job["framework"]}
    rest = [entry for entry in sys.path if entry not in ("", job["workdir"], *job["paths"])]
    sys.path[:] = [*dict.fromkeys(first), *sorted(rest, key=lambda entry: entry in runner)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*dict.fromkeys(first), *job["sites"]])
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Outside)]
    sys.meta_path.insert(0, TrustedFinder(trust))  # type: ignore[arg-type]
    # Python processes that tests start need their `site`, which this one did without at its start
    flags: Any = vars(subprocess)
    given = flags["_args_from_interpreter_flags"]
    flags["_args_from_interpreter_flags"] = lambda: [flag for flag in given() if flag != "-S"]
    sys.warnoptions += filter(None, os.environ.get("PYTHONWARNINGS", "").split(","))
    plugins = [name.partition(".")[0] for name in job["plugins"]]
    kept = {*standard_modules(), *plugins, *(name for name in KEPT if name not in job["own"])}
    within = [entry for entry in rest if entry.startswith(job["workdir"] + "/")]
    tree = names_in([*first, *within]) | {*job["own"]}
    required = names_in(job["sites"])
    # an extension module cannot be imported twice, and that of the requirements is the right one
    imported = {name for name in required if lies_in(sys.modules.get(name), job["sites"])}
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top in kept or top.startswith("hone_"):
            continue
        if top in tree or (top in required and top not in imported):
            del sys.modules[name]


def names_in(folders: "List[str]") -> "Set[str]":
    """Return the names of the modules that directories hold."""
    return {
        name.partition(".")[0] for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)
    }


def lies_in(module: Any, folders: "List[str]") -> bool:
    """Return whether a module was imported from one of the directories."""
    place = str(getattr(module, "__file__", None) or "")
    return any(place.startswith(os.path.join(folder, "")) for folder in folders)


def standard_modules() -> "Set[str]":
    """Return the names of the modules in Python's standard library."""
    names = getattr(sys, "stdlib_module_names", None)
    if names is None:  # before Python 3.10
        names = {*sys.builtin_module_names, "__main__"}
        for folder in (
            os.path.dirname(os.__file__),
            os.path.join(os.path.dirname(os.__file__), "lib-dynload"),
        ):
            if os.path.isdir(folder):
                names.update(name.partition(".")[0] for name in os.listdir(folder))
    return set(names)


class TrustedFinder:
    """Find modules of trusted files; their code comes from the text that was read before."""

    def __init__(self, trust: "Trust") -> None:
        self.trust = trust

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "Optional[ModuleSpec]":
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in self.trust.sources:
            return None
        spec.loader = TrustedLoader(name, spec.origin, self.trust)
        spec.cached = None
        return spec


class TrustedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, trust: "Trust") -> None:
        super().__init__(name, path)
        self.trust = trust

    def get_data(self, path: "Any") -> bytes:
        """Return the text of a trusted file as it was read before, and any other file's own bytes."""
        text = self.trust.sources.get(os.path.normpath(path))
        return super().get_data(path) if text is None else text

    def get_code(self, fullname: str) -> types.CodeType:
        return self.trust.compile(self.trust.sources[self.path], self.path)

    def exec_module(self, module: types.ModuleType) -> None:
        code = self.get_code(module.__name__)
        self.trust.modules.execute(module, code, self.trust.sources[self.path])
        self.trust.remember(module)
        self.trust.define(module)


class Trust:
    """The trusted texts of one test process, and the code and the namespaces made from them.

    Args:
        sources: path -> text.
        send: writes a record to the parent; see `hone_tally.Tally`.
    """

    def __init__(self, workdir: str, sources: "Dict[str, bytes]", send: Send) -> None:
        self.workdir, self.sources, self.send = workdir, sources, send
        # given: makes failing assertions show their values, in runs that make tasks, not for grading
        self.rewrite: Optional[Callable[[Any, bytes], None]] = None
        self.names = {os.path.relpath(path, workdir) for path in sources}
        self.codes: Set[int] = set()  # ids of the code objects of trusted modules
        self.kept: List[types.CodeType] = []  # kept alive, so that no id in `codes` is reused
        self.defined: Dict[int, Any] = {}  # functions of trusted modules and their code, by id, kept alive
        self.helpers: Dict[int, hone_integrity.Snapshot] = {}  # of helper modules, by id of their names
        self.words = b"\n".join(sources.values()).decode("utf-8", "replace")
        self.equality = hone_integrity.checked_equality(self.tampered, self.is_named_by_tests, self.own_code)
        self.copies = hone_copies.Copies(self.equality)
        self.modules = hone_names.Modules(
            {re.sub(r"\.__init__$", "", module_name(path)[0]): path for path in sources},
            self.equality,
            # pytest rewrites the assertions of runs that make tasks, and loads conftest.py for it
            lambda evidence: None if self.rewrite else self.tampered(evidence),
            self.own_code,
        )

    def tampered(self, evidence: str) -> None:
        self.send("tampered", evidence)

    def own_code(self) -> "OwnCode":
        """Return a context for code of the runner: what it raises is reported as a crash."""
        return OwnCode(self.send)

    def is_named_by_tests(self, cls: type, file: str) -> bool:
        """Return whether the tests themselves use a class that equals everything, such as mock.ANY.

        Args:
            file: source file of its equality.
        """
        inside = file.startswith(self.workdir + "/") and file not in self.sources
        return not inside and cls.__name__.lstrip("_") in self.words

    def compile(self, text: bytes, path: str) -> types.CodeType:
        """Compile a trusted module whose assertions compare with `hone_integrity`'s equality, and whose
        imports are checked by `hone_names`. Raises SyntaxError and ValueError.
        """
        tree = ast.parse(text, path)
        if self.rewrite is not None:
            self.rewrite(tree, text)
        with self.own_code():
            if self.rewrite is None:
                hone_names.CheckImports().visit(tree)
                for node in ast.walk(tree):
                    if isinstance(node, ast.Assert):
                        node.test = CheckComparisons().visit(node.test)
                ast.fix_missing_locations(tree)
        code = compile(tree, path, "exec", dont_inherit=True)
        nested = list(hone_names.nested_codes(code))
        self.codes.update(map(id, nested))
        self.kept += nested
        return code

    def load(self, path: str, text: bytes) -> types.ModuleType:
        """Import a test module from its text, under the name of pytest's default import mode."""
        name, root = module_name(path)
        package = name.rpartition(".")[0]
        if root not in sys.path:
            sys.path.insert(0, root)
        if package:
            __import__(package)
        code = self.compile(text, path)
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__, module.__package__ = path, package
        self.sources.setdefault(path, text)
        module.__loader__ = TrustedLoader(name, path, self)
        module.__spec__ = ModuleSpec(name, module.__loader__, origin=path)
        self.modules.execute(module, code, text)
        if package:  # as an import does
            setattr(sys.modules[package], name.rpartition(".")[2], module)
        self.define(module)
        return module

    def define(self, module: types.ModuleType) -> None:
        """Record the functions of a module that may be tests, of its own code or made by its decorators."""
        for function in functions_of(module):
            # `type`, because a proxy object may raise on any attribute access
            code = function.__code__ if type(function) is types.FunctionType else None
            self.defined[id(function)] = (function, code)

    def is_defined(self, function: Any) -> bool:
        """Return whether a test's function comes from a trusted module, or from a decorator in it."""
        code = getattr(function, "__code__", None)
        if code is None or id(code) in self.codes:
            return True
        known = self.defined.get(id(function))
        return known is not None and (known[1] is None or known[1] is code)

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


class OwnCode:
    """Reports exceptions of the runner's own code, and raises them on."""

    def __init__(self, send: Send) -> None:
        self.send = send

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception):
            while trace.tb_next is not None:
                trace = trace.tb_next
            place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
            self.send("crashed", f"{kind.__name__} at {place}: {str(error)[:500]}")


def functions_of(module: types.ModuleType) -> "Iterator[Any]":
    """Yield possible tests of a module: its values, and those of its classes and their bases."""
    for value in list(vars(module).values()):
        yield value
        if issubclass(type(value), type):
            for base in value.__mro__:
                yield from list(vars(base).values())


def module_name(path: str) -> "tuple[str, str]":
    """Return (dotted name, directory for sys.path): the nearest parent that is not a package."""
    folder, file = os.path.split(path)
    name = file[: -len(".py")] if file.endswith(".py") else file
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = f"{package}.{name}"
    return name, folder


class CheckComparisons(ast.NodeTransformer):
    """`a == b` -> EQUAL(a, b)"""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            name = ast.copy_location(ast.Name(hone_integrity.EQUAL, ast.Load()), node)
            return ast.copy_location(ast.Call(name, [node.left, *node.comparators], []), node)
        return node


CHECKED = b"""
import os
from os.path import *

def test_self():
    assert join("a", "b") == os.path.join("a", "b")
"""


def check_self(workdir: str) -> None:
    """Exercise this file and those that it uses before any code of the repository runs. Raises what fails."""
    records: List[Any] = []
    path = os.path.join(workdir, "hone_self_test.py")
    trust = Trust(workdir, {path: CHECKED}, lambda *record: records.append(record))
    module = types.ModuleType("hone_self_test")
    trust.modules.execute(module, trust.compile(CHECKED, path), CHECKED)
    trust.remember(module)
    vars(module)["test_self"]()
    trust.modules.check()
    if records:
        raise RuntimeError(f"a module without faults gave {records[0]}")
