"""Bugs in names: another variable, another attribute, another result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Change

_NEAREST = 2  # alternatives per name


@operator(cst.Name)
def wrong_variable(site: Site, node: cst.Name) -> Iterator[Change]:
    """A name becomes another local variable that is bound before."""
    parent = site.parent.node if site.parent else None
    if isinstance(parent, cst.Return) or (isinstance(parent, cst.Call) and parent.func is node):
        return
    if any(name == node.value for name, _ in site.scope.bound):
        for other in _others(site, node):
            yield site.replace(node, other)


def _others(site: Site, node: cst.CSTNode) -> list[str]:
    """Return the names bound last before a node."""
    at = site.source.span(node)[0]
    earlier = [name for name, bound in site.scope.bound if bound <= at and name != last_name(node)]
    return earlier[::-1][:_NEAREST]


@operator(cst.Return)
def wrong_return(site: Site, node: cst.Return) -> Iterator[Change]:
    """Another variable of the function is returned, or nothing."""
    if node.value is None or last_name(node.value) == "None":
        return
    if isinstance(node.value, cst.Name):
        for other in _others(site, node.value):
            yield site.replace(node.value, other)
    yield site.replace(node.value, "None")


@operator(cst.Return)
def negated_return(site: Site, node: cst.Return) -> Iterator[Change]:
    """The opposite of a truth value is returned."""
    if isinstance(node.value, cst.Comparison | cst.BooleanOperation):
        yield site.replace(node.value, f"not ({site.source.code(node.value)})")


@operator(cst.Attribute)
def wrong_attribute(site: Site, node: cst.Attribute) -> Iterator[Change]:
    """An attribute becomes another one that the class assigns to `self`."""
    names = site.scope.attributes
    parent = site.parent.node if site.parent else None
    called = isinstance(parent, cst.Call) and parent.func is node
    if last_name(node.value) == "self" and node.attr.value in names and not called:
        at = names.index(node.attr.value)
        for other in (names[at - 1], names[(at + 1) % len(names)]):
            yield site.replace(node.attr, other)


@operator(cst.For, cst.CompFor, cst.Assign)
def swapped_targets(site: Site, node: cst.For | cst.CompFor | cst.Assign) -> Iterator[Change]:
    """`for key, value in ...` or `a, b = ...` swaps its names."""
    target = node.target if isinstance(node, cst.For | cst.CompFor) else None
    if isinstance(node, cst.Assign) and len(node.targets) == 1 and not isinstance(node.value, cst.Tuple):
        target = node.targets[0].target
    if isinstance(target, cst.Tuple):
        names = [e.value for e in target.elements if isinstance(e.value, cst.Name)]
        for one, other in itertools.pairwise(names):
            yield site.source.swap(one, other)
