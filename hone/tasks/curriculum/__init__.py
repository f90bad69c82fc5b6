"""Generated tasks: small Python repositories with seeded bugs; the quickstart's have one bug each.

Everything that an agent reads in them is short and regular, so that a model of half a million parameters
can learn. A family (arithmetic, flow, objects, naming, unseen, repeated) draws a `Bug`; a `Plan` says which
bugs a task has and among what; `build` makes the `Task`. The task sets are disjoint by content and by names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hone.tasks.curriculum import arithmetic, flow, naming, objects, repeated, unseen
from hone.tasks.curriculum.bug import Family
from hone.tasks.curriculum.build import Rejected, build
from hone.tasks.curriculum.layout import Plan
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.tasks.settings import TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.types import Task

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
TRAINED_NAMING: tuple[Family, ...] = (naming.wrong_call, naming.wrong_key, naming.missing_builtin)
UNSEEN_FAMILIES: tuple[Family, ...] = (unseen.wrong_variable, unseen.missing_call)
TRAINED_REPEATED: tuple[Family, ...] = (
    repeated.repeated_operator,
    repeated.repeated_comparison,
    repeated.repeated_constant,
    repeated.repeated_variable,
)
UNSEEN_REPEATED: tuple[Family, ...] = (repeated.repeated_index, repeated.repeated_method)

ATTEMPTS = 200  # draws per task before the generator gives up


def generate(settings: TasksSettings) -> Splits:
    """Return the curriculum of `settings.seed`: the same settings give the same tasks.

    The test sets are made first, so that their tasks do not depend on the size of the training set; the
    validation set is made last, so that no other set depends on it.
    """
    taken: dict[object, str] = {}
    trained, unseen_ = families(settings.curriculum)
    sets = {
        "test": (trained, settings.test),
        "test_unseen": (unseen_, settings.unseen),
        "train": (trained, settings.train),
        "validation": (trained, settings.validation),
    }
    made = {
        split: tuple(_task(of_split, settings, split, i, taken) for i in range(size))
        for split, (of_split, size) in sets.items()
    }
    splits = Splits(**made)
    check_disjoint(splits)
    return splits


def families(curriculum: str) -> tuple[Sequence[Family], Sequence[Family]]:
    """Return the families of the training tasks, and those that only `test_unseen` has."""
    if curriculum == "three_edits":
        return TRAINED_REPEATED, UNSEEN_REPEATED
    if curriculum == "more_families":
        return (*TRAINED_FAMILIES, *TRAINED_NAMING), UNSEEN_FAMILIES
    return TRAINED_FAMILIES, UNSEEN_FAMILIES


def _plan(curriculum: str, of_split: Sequence[Family], index: int, source: random.Random) -> Plan:
    """Return the plan of task `index` of a set; families alternate."""
    family, following = (of_split[(index + offset) % len(of_split)] for offset in (0, 1))
    if curriculum == "two_bugs":
        return Plan(modules=source.choice((((family, following),), ((family,), (following,)))))
    return Plan(modules=((family,),), look_alikes=curriculum == "more_files")


def _task(
    of_split: Sequence[Family], settings: TasksSettings, split: str, index: int, taken: dict[object, str]
) -> Task:
    """Return task `index` of a set; a draw that clashes with another set is repeated."""
    task_id = f"{split}-{index:04d}"
    for attempt in range(ATTEMPTS):
        source = random.Random(f"{settings.seed}/{split}/{index}/{attempt}")
        try:
            plan = _plan(settings.curriculum, of_split, index, source)
            task = build(plan, source, task_id, split, settings.variety)
        except Rejected:
            continue
        names, content = tuple(task.metadata["names"]), content_hash(task)
        if taken.get(names, split) != split or content in taken:
            continue
        taken[names] = taken[content] = split
        return task
    raise TaskError(
        f"no task of {of_split[index % len(of_split)].__name__} left after {ATTEMPTS} draws: ask for fewer "
        f"tasks than {index}"
    )
