"""Watch, inside the test process, the namespaces of trusted modules.

A test reads its module's globals, and pytest and unittest find marks, hooks and settings there by name. A
`Namespace` tells what the module's own text can bind from what the code under test put there:

    while an import statement of the module runs      no name appears but those that it binds
    when the module was executed                      no name of pytest or unittest, no name of a builtin
    when the tests were collected, and at the end     no new name, no other value, no other mark

As everything in this process, it is the second line of defence; see `hone_integrity`. Some honest modules
bind names in ways that their text does not show; of those, only the names that decide a result are checked.
"""

import ast
import builtins
import dis
import importlib.util
import operator
import re
import sys
import types
from typing import Any, Callable, Collection, ContextManager, Iterator

import hone_integrity  # beside this file

IMPORT = "_@hone_import"  # no source text can spell this name, and no `import *` takes it
# Names by which pytest, unittest and Python find marks, hooks and settings of a module.
_SPECIAL = re.compile(
    r"pytest(?:mark|_.*)|collect_ignore(?:_glob)?|load_tests|__(?:test|getattr|dir|unittest_skip)__"
    r"|(?:setup|teardown)_(?:module|function|method|class)|(?:setUp|tearDown)(?:Module|Class)?"
)
_BUILTINS = frozenset(dir(builtins))
# Names that Python and pytest give modules, such as `__warningregistry__` and `_Module__pytest_setup_module`.
_ADDED = re.compile(r"__\w+__|_*\w*__pytest\w*|_?@\w+")
# The text can bind names that it does not show as such.
_DYNAMIC = re.compile(
    rb"\b(?:globals|locals|vars|exec|eval)\(|(?<![.\w])setattr\(|__dict__|__setattr__|__class__"
    rb"|_getframe|currentframe|inspect\.stack"
)
_SETS_MARKS = re.compile(rb"\.pytestmark\b|[\"']pytestmark|__unittest_")
_MARKS = ("pytestmark", "__unittest_skip__", "__unittest_expecting_failure__")

Report = Callable[[str], None]


class CheckImports(ast.NodeTransformer):
    """`from x import *` -> IMPORT(None); from x import *; IMPORT("x")   at the top level of a module"""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        body: list[ast.stmt] = []
        for statement in node.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and not is_future(statement):
                body += [call(statement, None), statement, call(statement, starred(statement))]
            else:
                body.append(statement)
        node.body = body
        return node


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def starred(node: ast.stmt) -> str:
    """Return the module of `from MODULE import *`, relative as it is written; "" for other imports."""
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        return "." * node.level + (node.module or "")
    return ""


def call(place: ast.stmt, argument: "str | None") -> ast.stmt:
    function = ast.Name(IMPORT, ast.Load())
    return ast.copy_location(ast.Expr(ast.Call(function, [ast.Constant(argument)], [])), place)


class Modules:
    """The namespaces of the trusted modules that were executed.

    Args:
        files: the trusted files, as module name -> path.
        equality: what `hone_integrity.EQUAL` names in each of them.
        report: takes evidence of tampering.
        own_code: a context for code of the runner.
    """

    def __init__(
        self,
        files: "dict[str, str]",
        equality: Any,
        report: "Report",
        own_code: "Callable[[], ContextManager[None]]",
    ) -> None:
        self.files, self.equality, self.report, self.own_code = files, equality, report, own_code
        self.namespaces: dict[int, Namespace] = {}  # by id of the module, which it keeps alive

    def execute(self, module: types.ModuleType, code: types.CodeType, text: bytes) -> None:
        """Execute a trusted module."""
        with self.own_code():
            names = vars(module)
            namespace = Namespace(module, code, text, self)
            names[hone_integrity.EQUAL], names[IMPORT] = self.equality, namespace.hook
            self.namespaces[id(module)] = namespace
        exec(code, names)
        with self.own_code():
            namespace.on_executed()

    def check(self, *, marks: bool = True) -> None:
        """Report what the code under test changed in any namespace since its module was executed.

        Args:
            marks: also report other marks.
        """
        namespaces = list(self.namespaces.values())
        attributes = self.attributes()
        dynamic = any(each.dynamic for each in namespaces)
        for namespace in namespaces:
            if namespace.executed:
                namespace.check(attributes, dynamic=dynamic, marks=marks)
        if not any(b"sys.modules" in each.text for each in namespaces):
            for name in filter(self.is_replaced, self.files):
                self.report(f"the code under test put another module in the place of {name}")

    def attributes(self) -> "set[str]":
        """Return the names of attributes that the text of any trusted module sets."""
        return {name for each in self.namespaces.values() for name in each.attributes}

    def is_replaced(self, name: str) -> bool:
        """Return whether a module in `sys.modules` is neither the trusted one nor one of the same name."""
        module = sys.modules.get(name)
        if module is None or id(module) in self.namespaces:
            return False
        spec = getattr(module, "__spec__", None)
        return spec is None or spec.name != name or spec.origin == self.files[name]

    def may_be_marked_by_others(self, namespace: "Namespace", name: str) -> bool:
        """Return whether the text of another module may mark a function, such as one that imports it."""
        word = re.compile(rb"\b%s\b" % name.encode())
        texts = [each.text for each in self.namespaces.values()]
        named = any(text is not namespace.text and b"mark" in text and word.search(text) for text in texts)
        return named or any(_SETS_MARKS.search(text) for text in texts)


class Namespace:
    """The globals of one trusted module."""

    def __init__(
        self, module: types.ModuleType, code: types.CodeType, text: bytes, modules: "Modules"
    ) -> None:
        self.module, self.text, self.modules, self.hook = module, text, modules, self.on_import
        inner = [each for each in nested_codes(code) if each is not code]
        self.rebound = {name for each in inner for name in stored(each, _GLOBALS)}
        self.attributes = {name for each in (code, *inner) for name in stored(each, _ATTRIBUTES)}
        self.own = {*stored(code, _NAMES), *self.rebound}
        self.dynamic = _DYNAMIC.search(text) is not None
        self.given: set[str] = set()  # names that `from x import *` gives
        self.known = set(vars(module))
        self.executed = False
        self.values: dict[str, Any] = {}
        self.marks: list[tuple[str, Any, list[Any]]] = []  # name of a function or class, itself, its marks

    def blame(self, evidence: str) -> None:
        self.modules.report(f"the code under test {evidence}")

    def on_import(self, source: "str | None") -> None:
        """Check the names that an import statement added.

        Args:
            source: None before the statement, and after it the module of `from MODULE import *` or "".
        """
        with self.modules.own_code():
            if source:
                self.given |= self.exported(source)
            if source is not None:
                for name in set(self.unexplained()) - self.modules.attributes():
                    self.blame(f"put the name {name} into {self.module.__name__} while it was imported")
            self.known |= set(vars(self.module))

    def exported(self, source: str) -> "set[str]":
        """Return what `from SOURCE import *` may bind: names that decide results only from a trusted module,
        or hooks of a conftest.py, whose text says that it takes them from there.
        """
        name = importlib.util.resolve_name(source, self.module.__package__) if source[0] == "." else source
        module = sys.modules.get(name)
        names = getattr(module, "__all__", None)
        if names is None:
            names = [name for name in getattr(module, "__dict__", ()) if name[:1] != "_"]
        trusted = id(module) in self.modules.namespaces
        hooks = "pytest_" if self.module.__name__.rpartition(".")[2] == "conftest" else ()
        return {name for name in names if trusted or name.startswith(hooks) or not _SPECIAL.fullmatch(name)}

    def unexplained(self) -> "list[str]":
        """Return the new names that neither the module's text nor Python and pytest bind."""
        return [
            name
            for name in vars(self.module)
            if name not in self.known
            and name not in self.own
            and name not in self.given
            and (_SPECIAL.fullmatch(name) or not (_ADDED.fullmatch(name) or self.is_submodule(name)))
        ]

    def is_submodule(self, name: str) -> bool:
        return f"{self.module.__name__}.{name}" in sys.modules

    def on_executed(self) -> None:
        """Check the names that decide results, and keep the values and marks."""
        for name in vars(self.module):
            shadows = name in _BUILTINS and not _ADDED.fullmatch(name)
            if name in self.own or name in self.given or not (shadows or _SPECIAL.fullmatch(name)):
                continue
            if not (self.dynamic and re.search(rb"\b%s\b" % name.encode(), self.text)):
                self.blame(f"put the name {name} into {self.module.__name__}")
        self.executed, self.known = True, set(vars(self.module))
        self.values = dict(vars(self.module))
        self.marks = [(name, thing, marks_of(thing)) for name, thing in self.markable()]
        self.check_kind()

    def check_kind(self) -> None:
        names = vars(self.module)
        if type(self.module) is not types.ModuleType and not self.dynamic:
            self.blame(f"changed the class of the module {self.module.__name__}")
        if not any(names.get("__builtins__") is each for each in (builtins, vars(builtins))):
            self.blame(f"replaced the builtins of {self.module.__name__}")
        if names.get(hone_integrity.EQUAL) is not self.modules.equality or names.get(IMPORT) is not self.hook:
            self.blame(f"replaced the comparison of {self.module.__name__}")

    def check(self, attributes: "Collection[str]", *, dynamic: bool, marks: bool) -> None:
        """Report names, values and marks that changed since the module was executed.

        Args:
            attributes: names of attributes that the text of any trusted module sets.
            dynamic: whether some of that text may set names that it does not show.
        """
        self.check_kind()
        for name in self.unexplained():
            decides = name in _BUILTINS or _SPECIAL.fullmatch(name)
            if name not in attributes and (decides or not dynamic):
                self.blame(f"put the name {name} into {self.module.__name__}")
        names = vars(self.module)
        for name in self.own - self.rebound:
            changed = name in self.values and names.get(name) is not self.values[name]
            if changed and name not in attributes and not dynamic:
                self.blame(f"replaced {self.module.__name__}.{name}")
        for name, thing, before in self.marks if marks else ():
            now = marks_of(thing)
            same = len(now) == len(before) and all(map(operator.is_, now, before))
            if not same and not self.modules.may_be_marked_by_others(self, name):
                self.blame(f"changed the marks of {self.module.__name__}.{name}")

    def markable(self) -> "Iterator[tuple[str, Any]]":
        """Yield the module, its functions and classes, and the functions of the classes."""
        yield self.module.__name__, self.module
        for name, value in list(vars(self.module).items()):
            if type(value) is types.FunctionType:
                yield name, value
            # `type`, because a proxy object may raise on any attribute access
            elif issubclass(type(value), type) and value.__module__ == self.module.__name__:
                yield name, value
                for inner, method in list(vars(value).items()):
                    if type(method) is types.FunctionType:
                        yield inner, method


def marks_of(thing: Any) -> "list[Any]":
    """Return the marks of a function, or of a class and its bases, as pytest and unittest find them."""
    found: list[Any] = []
    for each in type.__getattribute__(thing, "__mro__") if issubclass(type(thing), type) else (thing,):
        for name in _MARKS:
            value = vars(each).get(name)
            found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def nested_codes(code: types.CodeType) -> "Iterator[types.CodeType]":
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


_NAMES, _GLOBALS, _ATTRIBUTES = (
    frozenset(dis.opmap[name] for name in names)
    for names in (
        ("STORE_NAME", "STORE_GLOBAL"),
        ("STORE_GLOBAL", "DELETE_GLOBAL"),
        ("STORE_ATTR", "DELETE_ATTR"),
    )
)


def stored(code: types.CodeType, operations: "Collection[int]") -> "Iterator[str]":
    """Yield the names on which one code object's instructions of the given kinds work."""
    argument, instructions = 0, code.co_code
    for place in range(0, len(instructions), 2):
        operation, argument = instructions[place], argument << 8 | instructions[place + 1]
        if operation == dis.EXTENDED_ARG:
            continue
        if operation in operations:
            yield code.co_names[argument]
        argument = 0
