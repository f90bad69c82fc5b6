"""Bugs in exceptions: the wrong class, a handler that is too wide or too narrow, none raised."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.operators.operator import operator
from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Change

_OTHER = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "StopIteration": "GeneratorExit",
    "NotImplementedError": "ValueError",
    "RuntimeError": "ValueError",
    "OSError": "ValueError",
    "ImportError": "AttributeError",
    "LookupError": "ValueError",
    "ZeroDivisionError": "ValueError",
    "OverflowError": "ValueError",
    "UnicodeDecodeError": "KeyError",
    "Exception": "ValueError",
}
_WIDE = ("Exception", "BaseException")


@operator(cst.Raise, cst.ExceptHandler)
def wrong_exception(site: Site, node: cst.Raise | cst.ExceptHandler) -> Iterator[Change]:
    """An exception of another class is raised or caught."""
    named = None
    if isinstance(node, cst.Raise):
        named = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
    elif isinstance(node, cst.ExceptHandler):
        named = node.type
    if isinstance(named, cst.Name) and named.value in _OTHER:
        yield site.replace(named, _OTHER[named.value])


@operator(cst.ExceptHandler)
def widened_handler(site: Site, node: cst.ExceptHandler) -> Iterator[Change]:
    """A handler catches every exception."""
    if node.type is not None and last_name(node.type) not in _WIDE:
        yield site.replace(node.type, "Exception")


@operator(cst.ExceptHandler)
def narrowed_handler(site: Site, node: cst.ExceptHandler) -> Iterator[Change]:
    """A handler of several exceptions drops one of them."""
    if isinstance(node.type, cst.Tuple) and len(node.type.elements) > 1:
        codes = [site.source.code(element.value) for element in node.type.elements]
        for at in range(len(codes)):
            rest = codes[:at] + codes[at + 1 :]
            yield site.replace(node.type, f"({', '.join(rest)},)")


@operator(cst.Raise)
def removed_raise(site: Site, node: cst.Raise) -> Iterator[Change]:
    """An exception is not raised."""
    yield site.replace(node, "pass")


@operator(cst.ExceptHandler)
def swallowed_error(site: Site, node: cst.ExceptHandler) -> Iterator[Change]:
    """A handler does nothing."""
    if isinstance(node.body, cst.IndentedBlock) and site.source.code(node.body) != "pass":
        yield site.replace(node.body, "pass")
