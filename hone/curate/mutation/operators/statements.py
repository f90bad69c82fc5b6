"""Bugs in statements: one is missing or misplaced."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Change, Edit

_LEAVES = (cst.Return, cst.Continue, cst.Break, cst.Raise)


@operator(cst.Assign, cst.AugAssign)
def removed_assignment(site: Site, node: cst.Assign | cst.AugAssign) -> Iterator[Change]:
    """An assignment to something that already has a value is dropped."""
    line = site.statement
    if line is None or _initialises(site):
        return
    if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
        name, start = node.targets[0].target.value, site.source.span(node)[0]
        if not any(bound == name and at < start for bound, at in site.scope.bound):
            return  # the first binding: the name would be undefined
    yield line.remove()


@operator(cst.Assign)
def removed_initialisation(site: Site, node: cst.Assign) -> Iterator[Change]:
    """`__init__` does not set an attribute."""
    line = site.statement
    if line is not None and _initialises(site):
        yield line.remove()


def _initialises(site: Site) -> bool:
    target = site.node.targets[0].target if isinstance(site.node, cst.Assign) else None
    return (
        site.scope.name.endswith("__init__")
        and isinstance(target, cst.Attribute)
        and last_name(target.value) == "self"
    )


@operator(cst.Expr)
def removed_call(site: Site, node: cst.Expr) -> Iterator[Change]:
    """A call whose result is unused is dropped."""
    line = site.statement
    if line is None or not isinstance(node.value, cst.Call | cst.Yield | cst.Await):
        return
    if not (isinstance(node.value, cst.Call) and "super" in site.source.code(node.value.func)):
        yield line.remove()


@operator(cst.If)
def removed_guard(site: Site, node: cst.If) -> Iterator[Change]:
    """An `if` that leaves the function or the loop is dropped."""
    if node.orelse or site.source.code(node).startswith("elif"):
        return
    last = node.body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    if isinstance(small, _LEAVES):
        yield site.remove()


@operator(cst.If)
def removed_condition(site: Site, node: cst.If) -> Iterator[Change]:
    """The body of an `if` always runs."""
    if node.orelse is None:
        yield site.replace(node.test, "True")


@operator(cst.Break, cst.Continue)
def loop_control(site: Site, node: cst.Break | cst.Continue) -> Iterator[Change]:
    """`break` becomes `continue`, `continue` becomes `break`, or either becomes `pass`."""
    yield site.replace(node, "continue" if isinstance(node, cst.Break) else "break")
    yield site.replace(node, "pass")


@operator(cst.For, cst.While)
def statement_into_loop(site: Site, node: cst.For | cst.While) -> Iterator[Change]:
    """The line after a loop is indented into it."""
    source = site.source
    siblings = list(site.siblings)
    at = siblings.index(node) + 1
    if node.orelse or not isinstance(node.body, cst.IndentedBlock) or at >= len(siblings):
        return
    following = siblings[at]
    code = source.code(following)
    if isinstance(following, cst.SimpleStatementLine) and "\n" not in code and len(siblings) > at:
        end = source.span(node)[1]
        indented = f"{source.newline}{source.indentation(node.body.body[-1])}{code}"
        yield (Edit(end, end, indented), source.remove_statement(following, siblings))


@operator(cst.Yield)
def yield_whole(site: Site, node: cst.Yield) -> Iterator[Change]:
    """`yield from x` yields x as one item."""
    if isinstance(node.value, cst.From):
        yield site.replace(node.value, site.source.code(node.value.item))


@operator(cst.Expr)
def stopped_early(site: Site, node: cst.Expr) -> Iterator[Change]:
    """The loop ends after its first `yield`."""
    line = site.statement
    if line is not None and isinstance(node.value, cst.Yield) and site.inside(cst.For, cst.While):
        indented = f"{site.source.newline}{site.source.indentation(line.node)}break"
        end = site.source.span(line.node)[1]
        yield (Edit(end, end, indented),)
