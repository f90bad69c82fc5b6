"""How many tests of a data set have controls."""

from __future__ import annotations

from collections.abc import Sequence

from hone.curate.card import kind_of
from hone.curate.record import count_controlled
from hone.tasks.controls import Kind
from hone.types import Task


def controls_of(tasks: Sequence[Task]) -> dict[str, float]:
    """Return the share of the tasks' tests with a control, and the shares with a control of a lesser kind.

    A list of an expected value can be told from the value by its text; a negated assertion also fails for
    values that equal everything.
    """
    tests = sum(len(task.checks.named_tests) for task in tasks)

    def share(*kinds: Kind) -> float:
        counts = (
            count_controlled([c for c in task.checks.controls if kind_of(c) in kinds]) for task in tasks
        )
        return round(sum(counts) / tests, 4) if tests else 0.0

    return {
        "controlled": share(*Kind),
        "controlled_by_form": share(Kind.FORM),
        "controlled_by_negation": share(Kind.TRUTH, Kind.PARAMETER),
    }
