"""Bugs in values: arithmetic, constants, bounds, defaults, formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site, last_name, parameters
from hone.curate.mutation.source import Change, Edit

_ARITHMETIC: dict[type[cst.CSTNode], str] = {
    cst.Add: "-",
    cst.Subtract: "+",
    cst.Multiply: "//",
    cst.Divide: "*",
    cst.FloorDivide: "/",
    cst.Modulo: "//",
    cst.Power: "*",
    cst.BitAnd: "|",
    cst.BitOr: "&",
    cst.BitXor: "|",
    cst.LeftShift: ">>",
    cst.RightShift: "<<",
    cst.AddAssign: "-=",
    cst.SubtractAssign: "+=",
    cst.MultiplyAssign: "+=",
    cst.DivideAssign: "//=",
    cst.FloorDivideAssign: "/=",
    cst.BitAndAssign: "|=",
    cst.BitOrAssign: "&=",
}
_ORDERED = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
_FLIPPED = {"True": "False", "False": "True"}
_PERCENT = {"%r": "%s", "%d": "%s", "%i": "%s"}


@operator(cst.BinaryOperation, cst.AugAssign)
def arithmetic(site: Site, node: cst.BinaryOperation | cst.AugAssign) -> Iterator[Change]:
    """`+` becomes `-`, `//` becomes `/` and so on, in assignments too."""
    if not _is_text_format(node):
        yield from site.replace_operator(node.operator, _ARITHMETIC)


def _is_text_format(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(
        node.left, cst.SimpleString | cst.ConcatenatedString
    )


@operator(cst.BinaryOperation)
def dropped_term(site: Site, node: cst.BinaryOperation) -> Iterator[Change]:
    """One side of an arithmetic operation is dropped."""
    if not _is_text_format(node):
        for kept in (node.left, node.right):
            code = site.source.code(kept)
            yield site.replace_inner(node, code)


@operator(cst.UnaryOperation)
def dropped_sign(site: Site, node: cst.UnaryOperation) -> Iterator[Change]:
    """`-x` becomes `x`."""
    if isinstance(node.operator, cst.Minus | cst.BitInvert):
        yield (Edit(*site.source.span(node.operator), ""),)


@operator(cst.Slice, cst.Index, cst.Call, cst.Comparison)
def off_by_one(site: Site, node: cst.Slice | cst.Index | cst.Call | cst.Comparison) -> Iterator[Change]:
    """A bound of a slice, an index or an argument of `range` is one too large or too small."""
    for bound in _bounds(node):
        if isinstance(bound, cst.Integer):
            yield from _neighbours(site, bound)
        elif isinstance(bound, cst.Name | cst.Call | cst.Attribute):
            for step in ("- 1", "+ 1"):
                yield site.replace(bound, f"{site.source.code(bound)} {step}")
        elif _is_next_to(bound):
            yield site.replace(bound, site.source.code(bound.left))


def _bounds(node: cst.CSTNode) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Slice):
        return [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
    if isinstance(node, cst.Index):
        return [node.value] if isinstance(node.value, cst.Integer) else []
    if isinstance(node, cst.Call) and last_name(node.func) in ("range", "islice"):
        return [argument.value for argument in node.args if not argument.star]
    if isinstance(node, cst.Comparison) and isinstance(node.comparisons[0].operator, _ORDERED):
        return [node.comparisons[0].comparator]
    return []


def _is_next_to(bound: cst.BaseExpression) -> TypeGuard[cst.BinaryOperation]:
    """Return whether the node is `n + 1` or `n - 1`."""
    return (
        isinstance(bound, cst.BinaryOperation)
        and isinstance(bound.operator, cst.Add | cst.Subtract)
        and isinstance(bound.right, cst.Integer)
        and bound.right.value == "1"
    )


def _neighbours(site: Site, number: cst.Integer) -> Iterator[Change]:
    if number.value.isdigit():
        for step in (1, -1):
            yield site.replace(number, str(int(number.value) + step))


@operator(cst.Slice)
def dropped_bound(site: Site, node: cst.Slice) -> Iterator[Change]:
    """A slice loses its lower or upper bound, or its step."""
    for bound in (node.lower, node.upper, node.step):
        if bound is not None:
            yield site.replace(bound, "")


@operator(cst.Name, cst.Integer, cst.Float)
def wrong_constant(site: Site, node: cst.Name | cst.Integer | cst.Float) -> Iterator[Change]:
    """True, False, None and numbers take another value."""
    if isinstance(node, cst.Name):
        other = _FLIPPED.get(node.value) or {"None": "False"}.get(node.value)
        if other:
            yield site.replace(node, other)
    elif isinstance(node, cst.Integer):
        parent = site.parent.node if site.parent else None
        if not isinstance(parent, cst.Index | cst.Slice):
            yield from _neighbours(site, node)
    elif isinstance(node, cst.Float):
        yield site.replace(node, repr(float(node.value) * 10))


@operator(cst.SimpleString)
def wrong_text(site: Site, node: cst.SimpleString) -> Iterator[Change]:
    """A string swaps its case, loses its last character, or becomes a space where it was empty."""
    if "\\" in node.raw_value or node.prefix not in ("", "u"):
        return
    inside, quote = node.raw_value, node.quote
    for other in (inside.swapcase(), inside[:-1]) if inside else (" ",):
        if other != inside:
            yield site.replace(node, f"{node.prefix}{quote}{other}{quote}")


@operator(cst.Param)
def default_value(site: Site, node: cst.Param) -> Iterator[Change]:
    """A parameter has another default value."""
    if isinstance(node.default, cst.Name) and node.default.value in (*_FLIPPED, "None"):
        other = _FLIPPED.get(node.default.value, "True")
        yield site.replace(node.default, other)
    elif isinstance(node.default, cst.Integer):
        yield from _neighbours(site, node.default)


@operator(cst.FunctionDef)
def mutable_default(site: Site, node: cst.FunctionDef) -> Iterator[Change]:
    """`x=None` and `if x is None: x = []` become `x=[]`, shared by all calls."""
    if not isinstance(node.body, cst.IndentedBlock):
        return
    defaults = {p.name.value: p.default for p in parameters(node.params) if p.default is not None}
    for statement in node.body.body:
        guarded = _fresh_value(statement)
        if guarded is None or last_name(defaults.get(guarded[0], cst.Name("x"))) != "None":
            continue
        name, value = guarded
        yield (
            site.source.replace(defaults[name], site.source.code(value)),
            site.source.remove_statement(statement, node.body.body),
        )


def _fresh_value(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """Return ("x", node of `[]`) of `if x is None: x = []` for a list, dictionary or set; None otherwise."""
    if (
        not isinstance(statement, cst.If)
        or statement.orelse
        or not isinstance(statement.test, cst.Comparison)
    ):
        return None
    inner = statement.body.body[0]
    small = inner.body[0] if isinstance(inner, cst.SimpleStatementLine) else inner
    if not isinstance(small, cst.Assign) or len(statement.body.body) != 1:
        return None
    name, value = last_name(small.targets[0].target), small.value
    fresh = isinstance(value, cst.List | cst.Dict | cst.Set) or (
        isinstance(value, cst.Call) and not value.args and last_name(value) in ("list", "dict", "set")
    )
    return (name, value) if fresh and last_name(statement.test.left) == name else None


@operator(cst.FormattedStringExpression, cst.SimpleString)
def wrong_format(site: Site, node: cst.FormattedStringExpression | cst.SimpleString) -> Iterator[Change]:
    """A format loses its conversion or specification; `%r` becomes `%s`."""
    source = site.source
    if isinstance(node, cst.FormattedStringExpression):
        expression = source.code(node.expression)
        if node.conversion or node.format_spec:
            yield site.replace(node, f"{{{expression}}}")
        else:
            yield site.replace(node, f"{{{expression}!r}}")
    elif isinstance(node, cst.SimpleString):
        for pattern, other in _PERCENT.items():
            if pattern in node.value:
                yield site.replace(node, node.value.replace(pattern, other, 1))
        for field in re.finditer(r"\{[^{}]*[!:][^{}]*\}", node.value):
            plain = re.sub(r"[!:].*\}", "}", field.group())
            yield site.replace(node, node.value.replace(field.group(), plain, 1))
