"""Assertions of test functions as plain Python: `self.assertEqual(f(1), 2)` becomes `assert f(1) == 2`."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeGuard

_COMPARISONS: Mapping[str, type[ast.cmpop]] = {
    **dict.fromkeys(("equal", "equals", "listequal", "dictequal", "tupleequal", "setequal"), ast.Eq),
    **dict.fromkeys(("sequenceequal", "multilineequal"), ast.Eq),
    **dict.fromkeys(("notequal", "notequals"), ast.NotEq),
    "is": ast.Is,
    "isnot": ast.IsNot,
    "in": ast.In,
    "notin": ast.NotIn,
    "greater": ast.Gt,
    "greaterequal": ast.GtE,
    "less": ast.Lt,
    "lessequal": ast.LtE,
}
_CONTEXTS = {"raises", "warns", "deprecated_call"}  # of pytest


def _true(value: ast.expr) -> ast.expr:
    return value


def _false(value: ast.expr) -> ast.expr:
    return ast.UnaryOp(op=ast.Not(), operand=value)


def _none(value: ast.expr) -> ast.expr:
    return ast.Compare(left=value, ops=[ast.Is()], comparators=[ast.Constant(value=None)])


def _not_none(value: ast.expr) -> ast.expr:
    return ast.Compare(left=value, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])


def _instance(value: ast.expr, kind: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id="isinstance", ctx=ast.Load()), args=[value, kind], keywords=[])


_VALUES: Mapping[str, tuple[int, Callable[..., ast.expr]]] = {
    "true": (1, _true),
    "false": (1, _false),
    "isnone": (1, _none),
    "isnotnone": (1, _not_none),
    "isinstance": (2, _instance),
}  # name -> number of arguments, and the expression that must be true


def plain_statements(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a copy of statements with plain assertions, and without docstrings and `self.subTest`.

    `self.name` becomes `name`. A `self` that remains cannot be written without its class.
    """
    found: list[ast.stmt] = []
    writer = _Plain()
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        plain = writer.visit(copy.deepcopy(node))
        found += plain if isinstance(plain, list) else [plain]
    return [ast.fix_missing_locations(node) for node in found]


class _Plain(ast.NodeTransformer):
    def __init__(self) -> None:
        self._raised: set[str] = set()  # names of unittest's contexts, whose `exception` pytest calls `value`

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        name = _assertion(call)
        if not isinstance(call, ast.Call) or name is None:
            return self.generic_visit(node)
        given = [self.visit(argument) for argument in call.args]
        if name in _COMPARISONS and len(given) in (2, 3):
            left, right = given[:2]
            if isinstance(left, ast.Constant) and not isinstance(right, ast.Constant):
                left, right = (right, left) if _COMPARISONS[name] in (ast.Eq, ast.NotEq) else (left, right)
            test = ast.Compare(left=left, ops=[_COMPARISONS[name]()], comparators=[right])
            return ast.copy_location(ast.Assert(test=test, msg=None), node)
        if name in _VALUES and len(given) in (_VALUES[name][0], _VALUES[name][0] + 1):
            count, make = _VALUES[name]
            return ast.copy_location(ast.Assert(test=make(*given[:count]), msg=None), node)
        plain = {"raises": 1, "warns": 1, "raisesregex": 2, "warnsregex": 2}.get(name, len(given))
        if len(given) > plain:
            function, *arguments = given[plain:]
            called = ast.Call(func=function, args=arguments, keywords=call.keywords)
            body = ast.Expr(value=function.body if _takes_nothing(function) else called)
            context = _pytest(name.removesuffix("regex"), given[:1], given[1:plain])
            item = ast.withitem(context_expr=context, optional_vars=None)
            return ast.copy_location(ast.With(items=[item], body=[body]), node)
        return self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.AST]:
        (first, *more) = node.items
        call = first.context_expr
        method = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""
        self.generic_visit(node)
        if method == "subTest" and not more:
            return list[ast.AST](node.body)
        name = _assertion(call)
        if name is not None and isinstance(first.optional_vars, ast.Name):
            self._raised.add(first.optional_vars.id)
        if isinstance(call, ast.Call) and name in ("raises", "warns", "raisesregex", "warnsregex"):
            first.context_expr = _pytest(name.removesuffix("regex"), call.args[:1], call.args[1:2])
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node  # the `self` of a class in a test is not the test's

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.value, ast.Name):
            return node
        if node.value.id == "self":
            return ast.copy_location(ast.Name(id=node.attr, ctx=node.ctx), node)
        if node.attr == "exception" and node.value.id in self._raised:
            node.attr = "value"
        return node


def _takes_nothing(function: ast.expr) -> TypeGuard[ast.Lambda]:
    return isinstance(function, ast.Lambda) and not ast.unparse(function.args)


def _pytest(name: str, error: Sequence[ast.expr], match: Sequence[ast.expr]) -> ast.Call:
    """Return `pytest.raises(error, match=...)`, or `warns`."""
    function = ast.Attribute(value=ast.Name(id="pytest", ctx=ast.Load()), attr=name, ctx=ast.Load())
    keywords = [ast.keyword(arg="match", value=value) for value in match]
    return ast.Call(func=function, args=list(error), keywords=keywords)


def _assertion(call: ast.expr) -> str | None:
    """Return what a call of unittest's or nose's functions asserts, such as "equal"; None for other calls."""
    if not isinstance(call, ast.Call):
        return None
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        name = function.attr if function.value.id == "self" else ""
    else:
        name = function.id if isinstance(function, ast.Name) else ""
    folded = name.replace("_", "").lower()
    return folded.removeprefix("assert") if folded.startswith("assert") else None


def checking_functions(statements: Iterable[ast.stmt]) -> frozenset[str]:
    """Return the functions among statements that hold assertions."""
    functions = (each for each in statements if isinstance(each, ast.FunctionDef))
    return frozenset(each.name for each in functions if any(map(is_assertion, each.body)))


def is_assertion(node: ast.stmt, checks: Collection[str] = ()) -> bool:
    """Return whether a statement holds an assertion, of plain Python or of pytest's contexts.

    Args:
        checks: functions that hold assertions; see `checking_functions`.
    """
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return False
    return any(isinstance(each, ast.Assert) or _asserts(each, checks) for each in ast.walk(node))


def _asserts(node: ast.AST, checks: Collection[str]) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr in _CONTEXTS
    return isinstance(function, ast.Name) and (function.id in _CONTEXTS or function.id in checks)
