"""All operators, in modules by the kind of mistake."""

from __future__ import annotations

from hone.curate.mutation.operators import calls, conditions, errors, names, statements, values
from hone.curate.mutation.operators.operator import OPERATORS, Operator

__all__ = ["OPERATORS", "Operator", "calls", "conditions", "errors", "names", "statements", "values"]
