"""Bugs in conditions: comparisons, boolean operators, branches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site
from hone.curate.mutation.source import Change, Edit

_BOUNDARY = {
    cst.LessThan: "<=",
    cst.LessThanEqual: "<",
    cst.GreaterThan: ">=",
    cst.GreaterThanEqual: ">",
}
_INVERSE = {
    cst.LessThan: ">",
    cst.LessThanEqual: ">=",
    cst.GreaterThan: "<",
    cst.GreaterThanEqual: "<=",
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.In: "not in",
    cst.NotIn: "in",
    cst.Is: "is not",
    cst.IsNot: "is",
}


@operator(cst.ComparisonTarget)
def comparison_boundary(site: Site, node: cst.ComparisonTarget) -> Iterator[Change]:
    """`<` and `<=`, `>` and `>=` change places."""
    yield from site.replace_operator(node.operator, _BOUNDARY)


@operator(cst.ComparisonTarget)
def comparison_inverse(site: Site, node: cst.ComparisonTarget) -> Iterator[Change]:
    """`==` becomes `!=`, `in` becomes `not in`, `<` becomes `>` and so on."""
    yield from site.replace_operator(node.operator, _INVERSE)


@operator(cst.Comparison)
def none_for_empty(site: Site, node: cst.Comparison) -> Iterator[Change]:
    """`x is None` becomes `not x`, so that 0 and empty values count as none."""
    if len(node.comparisons) != 1 or not isinstance(node.left, cst.Name):
        return
    target = node.comparisons[0]
    if isinstance(target.comparator, cst.Name) and target.comparator.value == "None":
        words = {cst.Is: "not ", cst.IsNot: ""}.get(type(target.operator))
        if words is not None:
            new = f"{words}{node.left.value}"
            yield site.replace_inner(node, new)


@operator(cst.BooleanOperation)
def boolean_operator(site: Site, node: cst.BooleanOperation) -> Iterator[Change]:
    """`and` and `or` change places."""
    yield from site.replace_operator(node.operator, {cst.And: "or", cst.Or: "and"})


@operator(cst.BooleanOperation)
def dropped_operand(site: Site, node: cst.BooleanOperation) -> Iterator[Change]:
    """One side of `and` or `or` is dropped."""
    for kept in (node.left, node.right):
        yield site.replace_inner(node, site.source.code(kept))


@operator(cst.If, cst.While, cst.IfExp)
def negated_condition(site: Site, node: cst.If | cst.While | cst.IfExp) -> Iterator[Change]:
    """The condition of `if`, `while` or a conditional expression is negated."""
    if isinstance(node.test, cst.Comparison) and len(node.test.comparisons) == 1:
        return  # see `comparison_inverse`
    if isinstance(node.test, cst.UnaryOperation) and isinstance(node.test.operator, cst.Not):
        yield site.replace_inner(node.test, site.source.code(node.test.expression))
    elif isinstance(node.test, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or node.test.lpar:
        yield site.replace(node.test, f"not {site.source.code(node.test)}")
    else:
        yield site.replace(node.test, f"not ({site.source.code(node.test)})")


@operator(cst.UnaryOperation)
def dropped_not(site: Site, node: cst.UnaryOperation) -> Iterator[Change]:
    """A `not` inside a larger expression is dropped."""
    parent = site.parent.node if site.parent else None
    if isinstance(node.operator, cst.Not) and not isinstance(parent, cst.If | cst.While | cst.IfExp):
        yield site.replace_inner(node, site.source.code(node.expression))


@operator(cst.If, cst.IfExp)
def swapped_branches(site: Site, node: cst.If | cst.IfExp) -> Iterator[Change]:
    """The bodies of `if` and `else` change places, in statements and in expressions."""
    if isinstance(node, cst.IfExp):
        yield site.source.swap(node.body, node.orelse)
    elif isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
        one, other = node.body, node.orelse.body
        if isinstance(one, cst.IndentedBlock) and isinstance(other, cst.IndentedBlock):
            yield site.source.swap(one, other)


@operator(cst.If)
def dropped_branch(site: Site, node: cst.If) -> Iterator[Change]:
    """An `elif` or `else` is dropped."""
    branch = node.orelse
    if branch is None or (isinstance(branch, cst.Else) and not isinstance(branch.body, cst.IndentedBlock)):
        return
    start, end = site.source.lines(branch)
    if isinstance(branch, cst.If) and branch.orelse is not None:
        end = site.source.lines(branch.orelse)[0]
    yield (Edit(start, end, ""),)
