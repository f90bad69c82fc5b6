"""The names of all operators."""

from __future__ import annotations

from typing import Literal, get_args

from hone.curate.mutation.source import Change

Operator = Literal[
    "arithmetic", "boolean_operator", "comparison_boundary", "comparison_inverse", "default_value",
    "dropped_argument", "dropped_bound", "dropped_branch", "dropped_copy", "dropped_keyword",
    "dropped_method", "dropped_not", "dropped_operand", "dropped_sign", "dropped_super", "dropped_term",
    "dropped_wrapper", "loop_control", "mutable_default", "narrowed_handler", "negated_condition",
    "negated_return", "none_for_empty", "off_by_one", "removed_assignment", "removed_call",
    "removed_condition", "removed_guard", "removed_initialisation", "removed_raise",
    "statement_into_loop", "stopped_early", "swallowed_error", "swapped_arguments", "swapped_branches",
    "swapped_targets", "widened_handler", "wrong_attribute", "wrong_constant", "wrong_exception",
    "wrong_format", "wrong_function", "wrong_method", "wrong_return", "wrong_text", "wrong_variable",
    "yield_whole",
]  # fmt: skip
"""One way to seed a bug. A change may do nothing or not compile: candidates are filtered later."""

OPERATORS: tuple[Operator, ...] = get_args(Operator)
Bug = tuple[Operator, Change]
