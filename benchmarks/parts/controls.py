"""How many tests of a data set have controls."""

from __future__ import annotations

from collections.abc import Sequence

from hone.curate.validate import count_controlled
from hone.types import Control, Task


def controls_of(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the share of the tasks' tests with a control, and the shares with a control of a lesser kind.

    A list of an expected value can be told from the value by its text; a negated assertion also fails for
    values that equal everything.
    """
    tests = sum(len(task.checks.named_tests) for task in tasks)

    def share(kind: tuple[str, ...]) -> float:
        counts = (count_controlled([c for c in task.checks.controls if _kind(c) in kind]) for task in tasks)
        return round(sum(counts) / tests, 4) if tests else 0.0

    return {
        "controlled": share(("value", "form", "truth")),
        "controlled_by_form": share(("form",)),
        "controlled_by_negation": share(("truth",)),
    }


def _kind(control: Control) -> str:
    if control.new == f"[{control.old}]":
        return "form"
    negates = control.new.startswith("not (") or control.old.startswith("assert")
    return "truth" if negates or not control.old else "value"
