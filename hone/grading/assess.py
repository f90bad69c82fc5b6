"""Whether tasks can be graded, decided from their text before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from hone.environment.environment import has_own_repository
from hone.grading.errors import GraderError, MissingExtra
from hone.grading.plan import compile_plan
from hone.tasks.errors import TaskError, first_few
from hone.tasks.gradeability import Assessment, Gradeability
from hone.tasks.harbor.serve import DOCKERFILE_IMAGE
from hone.tasks.sources import check_complete
from hone.types import Task


def assess(task: Task) -> Assessment:
    """Return whether patches of a task can be graded, and where.

    Neither images nor repositories are opened: a task of an image that does not exist needs its image.
    """
    try:
        check_complete(task)
        compile_plan(task)
    except MissingExtra as missing:
        return Assessment(status=Gradeability.NEEDS_EXTRA, reason=_sentence(task, missing))
    except (GraderError, TaskError) as error:
        return Assessment(status=Gradeability.REFUSED, reason=_sentence(task, error))
    if task.environment.image.startswith(DOCKERFILE_IMAGE):
        return Assessment(status=Gradeability.NEEDS_IMAGE, reason="its image is built from its Dockerfile")
    if has_own_repository(task.environment):
        image = task.environment.image.removeprefix("docker://")
        return Assessment(status=Gradeability.NEEDS_IMAGE, reason=f"it is graded in its image, {image}")
    return Assessment(status=Gradeability.GRADEABLE)


def check_gradeable(tasks: Iterable[Task]) -> None:
    """Raise TaskError with the reasons when tasks can never be graded, or not without an optional package."""
    refused: list[str] = []
    for task in tasks:
        found = assess(task)
        if found.status in (Gradeability.REFUSED, Gradeability.NEEDS_EXTRA):
            refused.append(f"{task.id}: {found.reason}")
    if refused:
        raise TaskError(
            f"{len(refused)} tasks cannot be graded: {first_few(refused, separator='; ')}. Leave them out: "
            "`hone tasks import FILE --report -o tasks.jsonl` writes the others"
        )


def _sentence(task: Task, error: Exception) -> str:
    return str(error).removeprefix(f"task {task.id}: ").removeprefix(f"task {task.id} ")
