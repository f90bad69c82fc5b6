"""Bugs in calls: arguments, wrappers, the wrong function or method."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Change, Edit

_WRAPPERS = {
    *("sorted", "list", "tuple", "set", "frozenset", "str", "int", "float", "abs", "reversed", "dict"),
    *("bool", "iter", "len", "repr", "deepcopy", "copy", "max", "min", "sum", "enumerate", "round"),
}
_METHODS = {
    *("strip", "lstrip", "rstrip", "lower", "upper", "copy", "title", "casefold", "expandtabs"),
    *("splitlines", "items", "encode", "decode", "group", "resolve", "absolute"),
}
_PAIRS = (
    ("append", "extend"),
    ("appendleft", "append"),
    ("popleft", "pop"),
    ("lower", "upper"),
    ("startswith", "endswith"),
    ("lstrip", "rstrip"),
    ("split", "rsplit"),
    ("partition", "rpartition"),
    ("find", "rfind"),
    ("index", "rindex"),
    ("ljust", "rjust"),
    ("add", "discard"),
    ("keys", "values"),
    ("update", "setdefault"),
    ("union", "intersection"),
    ("difference", "symmetric_difference"),
    ("issubset", "issuperset"),
    ("match", "search"),
    ("min", "max"),
    ("any", "all"),
    ("takewhile", "dropwhile"),
    ("filter", "filterfalse"),
    ("floor", "ceil"),
    ("isinstance", "issubclass"),
    ("bisect_left", "bisect_right"),
    ("imap", "ifilter"),
    ("map", "filter"),
    ("zip", "zip_longest"),
)
_OTHER = {b: a for a, b in reversed(_PAIRS)} | dict(
    reversed(_PAIRS)
)  # of two pairs with one name, the first counts
_BUILTIN = {"min", "max", "any", "all", "map", "filter"}  # functions that need no import
_OTHER.update({"extend": "append", "strip": "rstrip", "sorted": "list", "sum": "max", "pop": "get"})


@operator(cst.Call)
def swapped_arguments(site: Site, node: cst.Call) -> Iterator[Change]:
    """Two neighbouring positional arguments change places."""
    plain = [argument.value for argument in node.args if not argument.star and not argument.keyword]
    for one, other in itertools.pairwise(plain):
        yield site.source.swap(one, other)


@operator(cst.Call)
def dropped_keyword(site: Site, node: cst.Call) -> Iterator[Change]:
    """A keyword argument is dropped."""
    yield from _dropped(site, keyword=True)


@operator(cst.Call)
def dropped_argument(site: Site, node: cst.Call) -> Iterator[Change]:
    """The last positional argument is dropped, where there are several."""
    yield from _dropped(site, keyword=False)


def _dropped(site: Site, *, keyword: bool) -> Iterator[Change]:
    node, source = site.node, site.source
    assert isinstance(node, cst.Call)
    plain = [argument for argument in node.args if not argument.star]
    chosen = [a for a in plain if a.keyword] if keyword else [a for a in plain if not a.keyword][1:][-1:]
    for argument in chosen:
        at = node.args.index(argument)
        if at:  # with the comma before it
            yield (Edit(source.span(node.args[at - 1].value)[1], source.span(argument.value)[1], ""),)
        elif len(node.args) == 1:
            yield (Edit(source.span(argument)[0], source.span(argument.value)[1], ""),)
        else:  # with the comma behind it
            yield (Edit(source.span(argument)[0], source.span(node.args[1])[0], ""),)


@operator(cst.Call)
def dropped_wrapper(site: Site, node: cst.Call) -> Iterator[Change]:
    """`sorted(x)` becomes `x`."""
    if not isinstance(node.func, cst.Name) or node.func.value not in _WRAPPERS:
        return
    if node.args and not node.args[0].star and not node.args[0].keyword:
        inner = node.args[0].value
        code = site.source.code(inner)
        simple = bool(inner.lpar) or isinstance(inner, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        yield site.replace(node, code if simple and not node.lpar else f"({code})")


@operator(cst.Call)
def dropped_method(site: Site, node: cst.Call) -> Iterator[Change]:
    """`x.strip()` becomes `x`."""
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _METHODS:
        code = site.source.code(node.func.value)
        yield site.replace_inner(node, code)


@operator(cst.Call)
def wrong_method(site: Site, node: cst.Call) -> Iterator[Change]:
    """`append` for `extend`, `lower` for `upper`, and the like."""
    if isinstance(node.func, cst.Attribute):
        other = _OTHER.get(node.func.attr.value)
        if other and other not in ("list", "dict"):
            yield site.replace(node.func.attr, other)


@operator(cst.Call)
def wrong_function(site: Site, node: cst.Call) -> Iterator[Change]:
    """`min` for `max`, `any` for `all`, and the like, of functions that need no import."""
    if isinstance(node.func, cst.Name):
        other = _OTHER.get(node.func.value)
        if other and (other in _BUILTIN or other in ("list", "isinstance", "issubclass")):
            yield site.replace(node.func, other)


@operator(cst.Subscript)
def dropped_copy(site: Site, node: cst.Subscript) -> Iterator[Change]:
    """`x[:]` becomes `x`, so that two names stand for one list."""
    index = node.slice[0].slice
    if (
        len(node.slice) == 1
        and isinstance(index, cst.Slice)
        and not (index.lower or index.upper or index.step)
    ):
        code = site.source.code(node.value)
        yield site.replace_inner(node, code)


@operator(cst.Expr)
def dropped_super(site: Site, node: cst.Expr) -> Iterator[Change]:
    """The line that calls the method of the base class is dropped."""
    line = site.statement
    if line is not None and isinstance(node, cst.Expr) and _calls_super(node.value):
        yield line.remove()


def _calls_super(node: cst.BaseExpression) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and last_name(node.func.value) == "super"
    )
