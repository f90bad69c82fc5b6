"""All operators: each module yields the bugs of one node, by the kind of mistake."""

from __future__ import annotations

from collections.abc import Iterator

from hone.curate.mutation.operators import expressions, statements, values
from hone.curate.mutation.operators.operator import OPERATORS, Bug, Operator
from hone.curate.mutation.sites import Site

__all__ = ["OPERATORS", "Bug", "Operator", "bugs"]


def bugs(site: Site) -> Iterator[Bug]:
    """Yield every bug that an operator makes of a node."""
    yield from expressions.bugs(site)
    yield from values.bugs(site)
    yield from statements.bugs(site)
