"""Bugs in values: constants, bounds, defaults, formats."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.sites import Site, last_name, parameters
from hone.curate.mutation.source import Bug

_ORDERED = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
_CONSTANTS = {"True": "False", "False": "True", "None": "False"}
_DEFAULTS = _CONSTANTS | {"None": "True"}
_PERCENT = {"%r": "%s", "%d": "%s", "%i": "%s"}


def bugs(site: Site) -> Iterator[Bug]:
    """Yield the bugs of a constant, a bound, a default or a format."""
    node = site.node
    yield from _off_by_one(site)
    match node:
        case cst.Slice():
            for bound in filter(None, (node.lower, node.upper, node.step)):
                yield "dropped_bound", site.replace(bound, "")
        case cst.Name(value=name) if name in _CONSTANTS:
            yield "wrong_constant", site.replace(node, _CONSTANTS[name])
        case cst.Integer() if not isinstance(site.parent_node, cst.Index | cst.Slice):
            yield from _neighbours("wrong_constant", site, node)
        case cst.Float():
            yield "wrong_constant", site.replace(node, repr(float(node.value) * 10))
        case cst.Param(default=cst.Name(value=name) as default) if name in _DEFAULTS:
            yield "default_value", site.replace(default, _DEFAULTS[name])
        case cst.Param(default=cst.Integer() as default):
            yield from _neighbours("default_value", site, default)
        case cst.FunctionDef(body=cst.IndentedBlock() as block):
            yield from _mutable_defaults(site, node, block)
        case cst.FormattedStringExpression():
            conversion = "" if node.conversion or node.format_spec else "!r"
            yield "wrong_format", site.replace(node, f"{{{site.code(node.expression)}{conversion}}}")
        case cst.SimpleString():
            yield from _other_texts(site, node)


def _off_by_one(site: Site) -> Iterator[Bug]:
    """Yield the bounds of slices, ranges and comparisons that are one too large or too small."""
    for bound in _bounds(site.node):
        match bound:
            case cst.Integer():
                yield from _neighbours("off_by_one", site, bound)
            case cst.Name() | cst.Call() | cst.Attribute():
                for step in ("- 1", "+ 1"):
                    yield "off_by_one", site.replace(bound, f"{site.code(bound)} {step}")
            case cst.BinaryOperation(
                left=left, operator=cst.Add() | cst.Subtract(), right=cst.Integer(value="1")
            ):
                yield "off_by_one", site.replace(bound, site.code(left))


def _bounds(node: cst.CSTNode) -> list[cst.BaseExpression]:
    match node:
        case cst.Slice():
            return [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
        case cst.Index(value=cst.Integer() as index):
            return [index]
        case cst.Call() if last_name(node.func) in ("range", "islice"):
            return [argument.value for argument in node.args if not argument.star]
        case cst.Comparison() if isinstance(node.comparisons[0].operator, _ORDERED):
            return [node.comparisons[0].comparator]
    return []


def _neighbours(operator: str, site: Site, number: cst.Integer) -> Iterator[Bug]:
    if number.value.isdigit():
        for step in (1, -1):
            yield operator, site.replace(number, str(int(number.value) + step))


def _other_texts(site: Site, node: cst.SimpleString) -> Iterator[Bug]:
    """Yield a string with swapped case, without its last character, and without a format."""
    inside, quote = node.raw_value, node.quote
    if "\\" not in inside and node.prefix in ("", "u"):
        for other in (inside.swapcase(), inside[:-1]) if inside else (" ",):
            if other != inside:
                yield "wrong_text", site.replace(node, f"{node.prefix}{quote}{other}{quote}")
    for pattern, other in _PERCENT.items():
        if pattern in node.value:
            yield "wrong_format", site.replace(node, node.value.replace(pattern, other, 1))
    for field in re.finditer(r"\{[^{}]*[!:][^{}]*\}", node.value):
        plain = re.sub(r"[!:].*\}", "}", field.group())
        yield "wrong_format", site.replace(node, node.value.replace(field.group(), plain, 1))


def _mutable_defaults(site: Site, node: cst.FunctionDef, block: cst.IndentedBlock) -> Iterator[Bug]:
    """Yield `x=[]`, shared by all calls, for `x=None` with `if x is None: x = []`."""
    defaults = {p.name.value: p.default for p in parameters(node.params) if p.default is not None}
    for statement in block.body:
        name, value = _fresh_value(statement)
        if value is not None and name in defaults and last_name(defaults[name]) == "None":
            new_default = site.source.replace(defaults[name], site.code(value))
            yield "mutable_default", (new_default, site.source.remove_statement(statement, block.body))


def _fresh_value(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression | None]:
    """Return ("x", node of `[]`) of `if x is None: x = []` for a list, dictionary or set; ("", None) else."""
    match statement:
        case cst.If(
            test=cst.Comparison(left=left),
            body=cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[cst.Assign() as assign, *_])])
            | cst.SimpleStatementSuite(body=[cst.Assign() as assign]),
            orelse=None,
        ):
            name, value = last_name(assign.targets[0].target), assign.value
            is_call = isinstance(value, cst.Call) and not value.args
            if isinstance(value, cst.List | cst.Dict | cst.Set) or (
                is_call and last_name(value) in ("list", "dict", "set")
            ):
                return (name, value) if last_name(left) == name else ("", None)
    return "", None
