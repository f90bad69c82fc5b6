"""The registry of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import libcst as cst

from hone.curate.mutation.sites import Site
from hone.curate.mutation.source import Change

NodeT = TypeVar("NodeT", bound=cst.CSTNode)


class Operator(NamedTuple):
    """One way to seed a bug. A change may do nothing or not compile: candidates are filtered later."""

    name: str
    kinds: tuple[type[cst.CSTNode], ...]  # of the nodes that it changes
    changes: Callable[[Site, Any], Iterator[Change]]  # takes a site and its node


OPERATORS: list[Operator] = []


def operator(
    *kinds: type[NodeT],
) -> Callable[[Callable[[Site, NodeT], Iterator[Change]]], Callable[[Site, NodeT], Iterator[Change]]]:
    """Register a function as the operator of its name for nodes of `kinds`."""

    def register(
        changes: Callable[[Site, NodeT], Iterator[Change]],
    ) -> Callable[[Site, NodeT], Iterator[Change]]:
        OPERATORS.append(Operator(changes.__name__, kinds, changes))
        return changes

    return register
