"""The quickstart's tasks: small Python repositories with one seeded bug each, generated from a seed.

Everything that an agent reads in them is short and regular, so that a model of a million parameters can
learn. A family (arithmetic, flow, objects, unseen) draws a `Bug`; `build` places it in a repository and makes
the `Task`. The task sets are disjoint by content and by names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hone.tasks.curriculum import arithmetic, flow, objects, unseen
from hone.tasks.curriculum.bug import Bug, Draw
from hone.tasks.curriculum.build import Rejected, build
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.tasks.settings import TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.types import Task

Family = Callable[[Draw], Bug]

TRAINED_FAMILIES: tuple[Family, ...] = (
    arithmetic.wrong_operator,
    arithmetic.off_by_one,
    arithmetic.wrong_comparison,
    arithmetic.swapped_arguments,
    arithmetic.wrong_default,
    arithmetic.wrong_constant,
    flow.missing_return,
    flow.inverted_condition,
    flow.wrong_initial_value,
    flow.missing_edge_case,
    objects.wrong_index,
    objects.wrong_method,
)
UNSEEN_FAMILIES: tuple[Family, ...] = (unseen.wrong_variable, unseen.missing_call)

ATTEMPTS = 200  # draws per task before the generator gives up


def generate(settings: TasksSettings) -> Splits:
    """Return the curriculum of `settings.seed`: the same settings give the same tasks.

    The test sets are made first, so that their tasks do not depend on the size of the training set; the
    validation set is made last, so that no other set depends on it.
    """
    taken: dict[object, str] = {}
    sets = {
        "test": (TRAINED_FAMILIES, settings.test),
        "test_unseen": (UNSEEN_FAMILIES, settings.unseen),
        "train": (TRAINED_FAMILIES, settings.train),
        "validation": (TRAINED_FAMILIES, settings.validation),
    }
    made = {
        split: tuple(_task(families, settings, split, i, taken) for i in range(size))
        for split, (families, size) in sets.items()
    }
    splits = Splits(**made)
    check_disjoint(splits)
    return splits


def _task(
    families: Sequence[Family], settings: TasksSettings, split: str, index: int, taken: dict[object, str]
) -> Task:
    """Return task `index` of a set: families alternate; a draw that clashes with another set is repeated."""
    family = families[index % len(families)]
    task_id = f"{split}-{index:04d}"
    for attempt in range(ATTEMPTS):
        try:
            source = random.Random(f"{settings.seed}/{split}/{index}/{attempt}")
            task = build(family, source, task_id, split, settings.variety)
        except Rejected:
            continue
        names, content = tuple(task.metadata["names"]), content_hash(task)
        if taken.get(names, split) != split or content in taken:
            continue
        taken[names] = taken[content] = split
        return task
    raise TaskError(
        f"no {family.__name__} task left after {ATTEMPTS} draws: ask for fewer tasks than {index}"
    )
