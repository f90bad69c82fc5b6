"""Bugs in expressions: a part that is missing or swapped, another operator, method, function or variable."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import libcst as cst

from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Bug, Edit

_INVERSE = (("<", ">"), ("<=", ">="), ("==", "!="), ("in", "not in"), ("is", "is not"))
_ARITHMETIC = (
    *("+ -", "- +", "* //", "/ *", "// /", "% //", "** *", "& |", "| &", "^ |", "<< >>", ">> <<"),
    *("+= -=", "-= +=", "*= +=", "/= //=", "//= /=", "&= |=", "|= &="),
)
_TOKENS: Mapping[str, Mapping[str, str]] = {
    "comparison_boundary": {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    "comparison_inverse": dict(_INVERSE) | {second: first for first, second in _INVERSE},
    "boolean_operator": {"and": "or", "or": "and"},
    "arithmetic": dict(pair.split() for pair in _ARITHMETIC),
}
_WRAPPERS = {
    *("sorted", "list", "tuple", "set", "frozenset", "str", "int", "float", "abs", "reversed", "dict"),
    *("bool", "iter", "len", "repr", "deepcopy", "copy", "max", "min", "sum", "enumerate", "round"),
}
_METHODS = {
    *("strip", "lstrip", "rstrip", "lower", "upper", "copy", "title", "casefold", "expandtabs"),
    *("splitlines", "items", "encode", "decode", "group", "resolve", "absolute"),
}
_PAIRS = (  # of two pairs with one name, the first counts
    *("append extend", "appendleft append", "popleft pop", "lower upper", "startswith endswith"),
    *("lstrip rstrip", "split rsplit", "partition rpartition", "find rfind", "index rindex", "ljust rjust"),
    *("add discard", "keys values", "update setdefault", "union intersection", "issubset issuperset"),
    *("difference symmetric_difference", "match search", "min max", "any all", "takewhile dropwhile"),
    *("filter filterfalse", "floor ceil", "isinstance issubclass", "bisect_left bisect_right"),
    *("imap ifilter", "map filter", "zip zip_longest"),
)
_SPLIT = [pair.split() for pair in reversed(_PAIRS)]
_OTHER = {second: first for first, second in _SPLIT} | dict(_SPLIT)
_OTHER |= {"extend": "append", "strip": "rstrip", "sorted": "list", "sum": "max", "pop": "get"}
_FUNCTIONS = {"min", "max", "any", "all", "map", "filter", "list", "isinstance", "issubclass"}  # not imported
_ORDINARY = cst.Name | cst.Attribute | cst.Call | cst.Subscript
_NEAREST = 2  # alternatives per name


def bugs(site: Site) -> Iterator[Bug]:
    """Yield the bugs of an expression."""
    yield from _other_tokens(site)
    yield from _dropped_parts(site)
    yield from _swapped_parts(site)
    yield from _other_names(site)
    match site.node:
        case cst.Call():
            yield from _dropped_arguments(site, site.node)
            yield from _other_calls(site, site.node)
        case cst.Comparison(
            left=cst.Name(value=name),
            comparisons=[
                cst.ComparisonTarget(
                    operator=cst.Is() | cst.IsNot() as token, comparator=cst.Name(value="None")
                )
            ],
        ):  # 0 and empty values count as none
            test = f"not {name}" if isinstance(token, cst.Is) else name
            yield "none_for_empty", site.replace_inner(site.node, test)
        case cst.UnaryOperation(operator=cst.Minus() | cst.BitInvert() as token):
            yield "dropped_sign", (Edit(*site.source.span(token), ""),)
        case cst.Yield(value=cst.From(item=item) as whole):  # `yield from x` yields x as one item
            yield "yield_whole", site.replace(whole, site.code(item))


def _other_tokens(site: Site) -> Iterator[Bug]:
    """Yield the bugs with another operator, such as `<=` for `<`."""
    node = site.node
    if isinstance(node, cst.ComparisonTarget | cst.BooleanOperation | cst.BinaryOperation | cst.AugAssign):
        token = " ".join(site.code(node.operator).split())
        for operator, others in _TOKENS.items():
            other = others.get(token)
            if other and not _is_text_format(node):
                yield operator, site.replace(node.operator, other)


def _is_text_format(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(
        node.left, cst.SimpleString | cst.ConcatenatedString
    )


def _dropped_parts(site: Site) -> Iterator[Bug]:
    """Yield the bugs that leave one part of an expression, such as `x` of `x.strip()`."""
    node = site.node
    match node:
        case cst.BooleanOperation(left=left, right=right):
            operator, parts = "dropped_operand", [left, right]
        case cst.BinaryOperation(left=left, right=right) if not _is_text_format(node):
            operator, parts = "dropped_term", [left, right]
        case cst.UnaryOperation(operator=cst.Not(), expression=inner) if not isinstance(
            site.parent_node, cst.If | cst.While | cst.IfExp
        ):  # see `negated_condition`
            operator, parts = "dropped_not", [inner]
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name(value=name))) if name in _METHODS:
            operator, parts = "dropped_method", [inner]
        case cst.Subscript(
            value=inner,
            slice=[cst.SubscriptElement(slice=cst.Slice(lower=None, upper=None, step=None))],
        ):  # two names for one list
            operator, parts = "dropped_copy", [inner]
        case _:
            return
    for part in parts:
        yield operator, site.replace_inner(node, site.code(part))


def _swapped_parts(site: Site) -> Iterator[Bug]:
    """Yield the bugs in which neighbouring arguments, targets or results change places."""
    node, swap = site.node, site.source.swap
    match node:
        case cst.Call():
            plain = [argument.value for argument in node.args if not argument.star and not argument.keyword]
            for one, other in itertools.pairwise(plain):
                yield "swapped_arguments", swap(one, other)
        case cst.IfExp():
            yield "swapped_branches", swap(node.body, node.orelse)
        case (
            cst.For(target=cst.Tuple(elements=elements))
            | cst.CompFor(target=cst.Tuple(elements=elements))
            | cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=elements))])
        ) if not (isinstance(node, cst.Assign) and isinstance(node.value, cst.Tuple)):
            names = [element.value for element in elements if isinstance(element.value, cst.Name)]
            for one, other in itertools.pairwise(names):
                yield "swapped_targets", swap(one, other)


def _dropped_arguments(site: Site, call: cst.Call) -> Iterator[Bug]:
    """Yield the calls without one keyword, or without the last of several positional arguments."""
    source, plain = site.source, [argument for argument in call.args if not argument.star]
    for argument in [a for a in plain if a.keyword] + [a for a in plain if not a.keyword][1:][-1:]:
        at = call.args.index(argument)
        start, end = source.span(argument)[0], source.span(argument.value)[1]
        if at:  # with the comma before it
            start = source.span(call.args[at - 1].value)[1]
        elif len(call.args) > 1:  # with the comma behind it
            end = source.span(call.args[1])[0]
        yield "dropped_keyword" if argument.keyword else "dropped_argument", (Edit(start, end, ""),)


def _other_calls(site: Site, call: cst.Call) -> Iterator[Bug]:
    """Yield the calls of another method or function, and the argument of a wrapper without it."""
    name = last_name(call.func)
    other = _OTHER.get(name, "")
    if isinstance(call.func, cst.Attribute) and other not in ("", "list"):
        yield "wrong_method", site.replace(call.func.attr, other)
    if isinstance(call.func, cst.Name) and other in _FUNCTIONS:
        yield "wrong_function", site.replace(call.func, other)
    if isinstance(call.func, cst.Name) and name in _WRAPPERS and call.args:
        first = call.args[0]
        if not first.star and not first.keyword:
            code = site.code(first.value)
            bare = (first.value.lpar or isinstance(first.value, _ORDINARY)) and not call.lpar
            yield "dropped_wrapper", site.replace(call, code if bare else f"({code})")


def _other_names(site: Site) -> Iterator[Bug]:
    """Yield the bugs with another variable that is bound before, another attribute or another result."""
    node, parent = site.node, site.parent_node
    is_called = isinstance(parent, cst.Call) and parent.func is node
    match node:
        case cst.Name() if not is_called and not isinstance(parent, cst.Return):
            if any(name == node.value for name, _ in site.scope.bound):
                for other in _bound_before(site, node):
                    yield "wrong_variable", site.replace(node, other)
        case cst.Attribute() if not is_called and last_name(node.value) == "self":
            names = site.scope.attributes
            if node.attr.value in names:
                at = names.index(node.attr.value)
                for other in (names[at - 1], names[(at + 1) % len(names)]):
                    yield "wrong_attribute", site.replace(node.attr, other)
        case cst.Return(value=cst.BaseExpression() as value) if last_name(value) != "None":
            if isinstance(value, cst.Name):
                for other in _bound_before(site, value):
                    yield "wrong_return", site.replace(value, other)
            yield "wrong_return", site.replace(value, "None")
            if isinstance(value, cst.Comparison | cst.BooleanOperation):
                yield "negated_return", site.replace(value, f"not ({site.code(value)})")


def _bound_before(site: Site, node: cst.CSTNode) -> list[str]:
    """Return the names bound last before a node."""
    at = site.source.span(node)[0]
    earlier = [name for name, bound in site.scope.bound if bound <= at and name != last_name(node)]
    return earlier[::-1][:_NEAREST]
