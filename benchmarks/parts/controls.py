"""How many tests of a data set have controls."""

from __future__ import annotations

from collections.abc import Sequence

from hone.curate.validate import count_controlled
from hone.types import Task


def controls_of(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the share of the tasks' tests with a control, and the share whose control negates an assertion.

    Such a control is found out by fewer ways of tampering than a changed expectation.
    """
    tests = sum(len(task.checks.named_tests) for task in tasks)
    controlled = sum(count_controlled(task.checks.controls) for task in tasks)
    negating = sum(
        count_controlled([control for control in task.checks.controls if _negates(control.old, control.new)])
        for task in tasks
    )
    return {
        "controlled": round(controlled / tests, 4) if tests else 0.0,
        "controlled_by_negation": round(negating / tests, 4) if tests else 0.0,
    }


def _negates(old: str, new: str) -> bool:
    return not old or new.startswith("not (") or (old.startswith("assert") and new.startswith("assert"))
