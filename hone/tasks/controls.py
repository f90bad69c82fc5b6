"""Edits of trusted files that change one expectation of the tests.

An expectation is changed so that values which equal everything, or repeat what they are compared with, pass
before and after: a constant becomes another, other expressions become a list of themselves, an exception
becomes an unrelated one. Only where there is none to change, the assertion is negated, or a false one is
added.
"""

from __future__ import annotations

import ast
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from pathlib import PurePosixPath

from hone.types import Control

EDITS = 5  # of each test function, at most
VALUE_EDITS = 3  # of each helper module or data file, at most
CONTROLS = 2  # of each test, at most; one of them is drawn for each grading

_RAISES = {"raises", "assertRaises", "assertRaisesRegex", "assertRaisesMessage"}
_WARNS = {"warns", "assertWarns", "assertWarnsRegex", "assertWarnsMessage"}
_PARAMETER = (
    "{name} = not {name} if isinstance({name}, bool) else {name} + 1 if isinstance({name}, (int, float))"
    " else {name} + '~' if isinstance({name}, str) else [{name}]"
)
_EXCEPTIONS = ("TypeError", "KeyError", "RuntimeError", "IndexError", "AttributeError", "ValueError")
_WARNINGS = ("DeprecationWarning", "FutureWarning", "RuntimeWarning", "UserWarning")
_EQUAL = {
    f"assert{kind}Equal" for kind in ("", "List", "Tuple", "Dict", "Set", "Sequence", "MultiLine", "Count")
}
_EQUAL |= {"assertEquals", "assertCountEqual", "assertItemsEqual"}
_PAIRS = (
    ("assertTrue", "assertFalse"), ("assertIn", "assertNotIn"), ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"), ("assertIsInstance", "assertNotIsInstance"),
    ("assertEqual", "assertNotEqual"), ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"), ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertRegex", "assertNotRegex"), ("assert_called", "assert_not_called"),
)  # fmt: skip
OPPOSITE = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
OPPOSITE |= dict.fromkeys(("assert_called_once", "assert_called_once_with"), "assert_not_called")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Kind(IntEnum):
    """What an edit changes; of less use from kind to kind."""

    VALUE = 0  # a constant or an exception: the text does not show the edit
    PARAMETER = 1  # the value of a parameter, into another of its type
    FORM = 2  # another expression, into a list of itself: code that repeats the expression fails too
    TRUTH = 3  # an assertion, into its opposite: values that equal everything fail too


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Text that takes the place of other text in a module."""

    start: int  # offset in the UTF-8 bytes
    old: str
    new: str
    kind: Kind = Kind.VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFunction:
    """A test function, the tests that are runs of it, and its edits."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    file: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]

    def control(self, edit: Edit, tests: tuple[str, ...]) -> Control:
        return Control(file=self.file, start=edit.start, old=edit.old, new=edit.new, tests=tests)


def best(edits: Sequence[Edit]) -> list[Edit]:
    """Return the edits to keep of those that the same tests fail with: the first ones of the best kind."""
    kind = min((edit.kind for edit in edits), default=Kind.VALUE)
    return [edit for edit in edits if edit.kind == kind][: 1 if kind is Kind.TRUTH else CONTROLS]


def propose(texts: Mapping[str, str], tests: frozenset[str]) -> list[TestFunction]:
    """Return the functions of the tests in test files (path -> text) with up to EDITS edits each.

    Tests without a function in these files, such as doctests and generated ones, have none.
    """
    functions = []
    for file, text in sorted(texts.items()):
        module = _Module.read(text)
        if module is None:
            continue
        runs: dict[Function, list[str]] = {}
        for test in sorted(tests):
            path, *names = test.split("[")[0].split("::")
            function = module.find(names) if path == file else module.find([path]) if not names else None
            if function is not None:
                runs.setdefault(function, []).append(test)
        for function, ids in runs.items():
            edits = tuple(islice(module.edits(function), EDITS))
            functions.append(TestFunction(file=file, tests=tuple(ids), edits=edits))
    return functions


def files_named_in(texts: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the files whose name, or the name of whose module, stands in one of the texts.

    >>> files_named_in(["from tests.helpers import x"], ["tests/helpers.py", "tests/data/a.txt"])
    ['tests/helpers.py']
    """
    words = {word for text in texts for word in (*re.findall(r"[\w.-]+", text), *re.findall(r"\w+", text))}
    names = {file: PurePosixPath(file) for file in files}
    return [
        f for f, name in names.items() if name.name in words or (name.suffix == ".py" and name.stem in words)
    ]


def propose_values(file: str, text: str) -> list[Edit]:
    """Return up to VALUE_EDITS edits of what tests compare with outside their own module.

    Of a Python module, constants that it assigns to names; of any other file, lines.
    """
    if file.endswith(".py"):
        module = _Module.read(text)
        edits = [] if module is None else module.values()
    else:
        edits = list(_lines(text))
    spread = [*edits[-1:], *edits[:-1][:1], *edits[1:-1][len(edits[1:-1]) // 2 :]]
    return spread[:VALUE_EDITS]


def _lines(text: str) -> Iterator[Edit]:
    start = 0
    for line in text.encode("utf-8", "surrogateescape").splitlines(keepends=True):
        old = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if any(letter.isascii() and letter.isalnum() for letter in old):
            yield Edit(start=start, old=old, new=_another_text(old))
        start += len(line)


class _Module:
    """A test module's text and syntax tree."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text, self.data, self.tree = text, text.encode(), tree
        self.lines = [0]  # offset of each line
        for line in self.data.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    @classmethod
    def read(cls, text: str) -> _Module | None:
        """Return None for text that is not UTF-8 or not Python, of this interpreter's version."""
        try:
            return cls(text, _parse(text.encode()))
        except (SyntaxError, ValueError, RecursionError):
            return None

    def find(self, names: Sequence[str]) -> Function | None:
        """Return the function `[Class, ...] function` of a test id, which a base class may define."""
        body: Sequence[ast.stmt] = self.tree.body
        for name in names[:-1]:
            found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
            if not found:
                return None
            body = [*chain.from_iterable(self._bases(found[-1], set())), *found[-1].body]
        functions = [n for n in body if isinstance(n, Function) and n.name == names[-1]]
        return functions[-1] if functions else None

    def _bases(self, node: ast.ClassDef, seen: set[str]) -> Iterator[list[ast.stmt]]:
        """Yield the bodies of the base classes in this module, the farthest first."""
        for base in reversed(node.bases):
            if isinstance(base, ast.Name) and base.id in self.classes and base.id not in seen:
                seen.add(base.id)
                yield from self._bases(self.classes[base.id], seen)
                yield self.classes[base.id].body

    def values(self) -> list[Edit]:
        """Return edits of the constants that the module's top level assigns, in their order."""
        values = [node.value for node in self.tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
        return [edit for value in values if value for leaf in _leaves(value) for edit in self._constant(leaf)]

    def edits(self, function: Function) -> Iterator[Edit]:
        """Yield the edits of a function: the best of each expectation, the last, the first and the middle
        ones first; then each one's further edits."""
        sites = [
            [edit for each in edits for edit in self._of_name(function, each)]
            for node in _walk(function)
            if (edits := self._expectation(node))
        ]
        if not sites:
            calls = (node.value for node in _walk(function) if isinstance(node, ast.Expr))
            sites = [self._arguments(node) for node in calls if isinstance(node, ast.Call)]
        spread = [*sites[-1:], *sites[:-1][:1], *sites[1:-1]]
        for rank in range(max(map(len, spread), default=0)):
            yield from (edits[rank] for edits in spread if rank < len(edits))
        yield self._false_assertion(function)

    def _of_name(self, function: Function, edit: Edit) -> list[Edit]:
        """Return the edit of an expectation, after those of its value where it is a name of the function."""
        if edit.kind is not Kind.FORM or not edit.old.isidentifier():
            return [edit]
        arguments = function.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if any(parameter.arg == edit.old for parameter in parameters):
            first = next((node for node in function.body if not _is_text(node)), function.body[-1])
            if first.lineno == function.lineno:
                return [edit]
            end = "\n" + " " * first.col_offset
            new = _PARAMETER.format(name=edit.old) + end
            return [Edit(start=self._span(first)[0], old="", new=new, kind=Kind.PARAMETER), edit]
        values = [
            node.value
            for node in _walk(function)
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == edit.old for target in node.targets)
        ]
        return [*(other for value in values for other in self._constant(value)), edit]

    def _expectation(self, node: ast.AST) -> list[Edit]:
        """Return the edits of one assertion, best first; none for other nodes."""
        match node:
            case ast.Assert(test=test):
                return [
                    *self._condition(test),
                    self._replace(test, f"not ({self._source(test)})", Kind.TRUTH),
                ]
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args):
                if name in _RAISES | _WARNS and args:
                    return self._exception(node, name)
                if name.lower().startswith("assert"):
                    return self._assert_call(node, name)
        return []

    def _condition(self, test: ast.expr) -> list[Edit]:
        """Return edits of the expected value of a condition: the constant, otherwise its last part."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return list(chain.from_iterable(map(self._condition, reversed(values))))
            case ast.Compare(left=left, ops=[*_, op], comparators=[*others, right]):
                sides = (right, [left, *others][-1])
                edits = list(chain.from_iterable(map(self._constant, sides)))
                if isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)):
                    return edits
                return [*edits, self._wrap(right)]
            case ast.Call(func=ast.Attribute()):  # such as text.startswith("a"), np.allclose(found, 2.0)
                return self._arguments(test)
        return []

    def _exception(self, call: ast.Call, name: str) -> list[Edit]:
        """Return edits to two other exceptions, since one may be a base of the expected one."""
        expected = self._source(call.args[0])
        others = [each for each in (_WARNINGS if name in _WARNS else _EXCEPTIONS) if each != expected]
        first = zlib.crc32(expected.encode()) % len(others)
        chosen = (others[first], others[first - 1])
        return [*(self._replace(call.args[0], other) for other in chosen), *self._arguments(call)]

    def _assert_call(self, call: ast.Call, name: str) -> list[Edit]:
        edits = self._arguments(call)
        values = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
        if name in _EQUAL or name not in OPPOSITE:
            edits += [self._wrap(arg) for arg in values[:2][-1:]]
        if name in OPPOSITE:
            end = self._span(call.func)[1]
            edits.append(Edit(start=end - len(name), old=name, new=OPPOSITE[name], kind=Kind.TRUTH))
        return edits

    def _arguments(self, call: ast.Call) -> list[Edit]:
        """Return edits of constants among the first two arguments and `match`, the last first."""
        values = [*call.args[:2], *(key.value for key in call.keywords if key.arg == "match")]
        return list(chain.from_iterable(map(self._constant, reversed(values))))

    def _constant(self, node: ast.expr) -> list[Edit]:
        """Return an edit of the last constant of a literal, of a list's element, or of `approx(constant)`."""
        match node:
            case ast.Call(func=ast.Attribute(attr="approx") | ast.Name(id="approx"), args=[value, *_]):
                return self._constant(value)
            case ast.List(elts=[]):
                return [self._replace(node, "[0]")]
            case ast.Tuple(elts=[]):
                return [self._replace(node, "(0,)")]
            case ast.Dict(values=[]):
                return [self._replace(node, "{0: 0}")]
            case (
                ast.List(elts=inside)
                | ast.Tuple(elts=inside)
                | ast.Set(elts=inside)
                | ast.Dict(values=inside)
            ):
                return next(filter(None, map(self._constant, reversed(inside))), [])
            case ast.Constant(value=value):
                changed = _another(value)
                return [] if changed is None else [self._replace(node, repr(changed))]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                changed = _another(value)
                return [] if changed is None else [self._replace(node, f"-{changed!r}")]
        return []

    def _false_assertion(self, function: Function) -> Edit:
        last = function.body[-1]
        end = self._span(last)[1]
        on_own_line = last.lineno > function.lineno
        line = "\n" + " " * function.body[0].col_offset if on_own_line else "; "
        return Edit(start=end, old="", new=f"{line}assert not 1", kind=Kind.TRUTH)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self.lines[node.end_lineno - 1] + node.end_col_offset
        return self.lines[node.lineno - 1] + node.col_offset, end

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _replace(self, node: ast.expr, new: str, kind: Kind = Kind.VALUE) -> Edit:
        return Edit(start=self._span(node)[0], old=self._source(node), new=new, kind=kind)

    def _wrap(self, node: ast.expr) -> Edit:
        return self._replace(node, f"[{self._source(node)}]", Kind.FORM)


def _parse(data: bytes) -> ast.Module:
    """Return the syntax tree. Raises what `ast.parse` raises."""
    try:
        return ast.parse(data)
    except SystemError:  # before Python 3.13: the garbage collector ran code that parses, too (gh-106905)
        return ast.parse(data)


def _walk(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body in the order of their text, without the parts of f-strings."""
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.JoinedStr):
            pending += reversed(list(ast.iter_child_nodes(node)))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the elements of a literal, without those that hold others."""
    match node:
        case ast.List(elts=inside) | ast.Tuple(elts=inside) | ast.Set(elts=inside) | ast.Dict(values=inside):
            for each in inside:
                yield from _leaves(each)
        case _:
            yield node


def _another(value: object) -> object:
    """Return a value of the same type that differs; None where there is none.

    >>> _another("abc"), _another(3), _another(True)
    ('abd', 4, False)
    """
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value + 1 if math.isfinite(value) and abs(value) < 1e15 else None
        case complex():
            return value + 1
        case str():
            return _another_text(value)
        case bytes():
            return _another_text(value.decode("latin-1")).encode("latin-1")
    return None


def _another_text(text: str) -> str:
    """Return text with its last ASCII letter or digit changed to the next."""
    for i in range(len(text) - 1, -1, -1):
        for first, last in ("az", "AZ", "09"):
            if first <= text[i] <= last:
                changed = first if text[i] == last else chr(ord(text[i]) + 1)
                return text[:i] + changed + text[i + 1 :]
    return text + "~"
