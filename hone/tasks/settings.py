"""Settings of the tasks room."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hone.settings import Mark, Settings

Curriculum = Literal["one_bug", "more_families", "two_bugs", "more_files", "three_edits"]


class SelectSettings(Settings):
    """Which tasks are used; the default selects all."""

    repositories: tuple[str, ...] = ()
    """Only tasks of these repositories, each "owner/name"."""
    ids_file: Path | None = None
    """Only tasks with an id in this file (one per line; `#` starts a comment), or in a published list:
    "django-train-201" or "django-test-30"."""
    difficulty: tuple[str, ...] = ()
    """Only tasks of these difficulties of their data set, such as "<15 min fix" of SWE-bench Verified."""
    min_problem_chars: int = Field(default=0, ge=0)
    """Minimum characters of a problem statement."""
    max_problem_chars: int | None = Field(default=None, ge=1)
    """Maximum characters of a problem statement."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of tasks."""
    seed: int | None = None
    """Seed of the order of tasks, applied before `limit`; None keeps their order."""


class TasksSettings(Settings):
    """The tasks of a run and the size of each set."""

    source: str = "curriculum"
    """"curriculum" (generated from the seed), or a file of tasks, which may set `metadata.split`."""
    evaluation: Path | None = None
    """A file of tasks or the name of a hub data set that replaces the test tasks of `source`."""
    validation_source: Path | None = None
    """A file of tasks or the name of a hub data set that replaces the validation tasks of `source`."""
    allow_overlap: bool = False
    """Whether training and evaluation may share a task or a commit of a repository."""
    unproven: bool = False
    """Whether to train on tasks of a file that `hone tasks validate -o` has not admitted."""
    timeout_s: float | None = Field(default=None, gt=0, lt=1e9)
    """Time limit for the tests of every task, in seconds; None keeps each task's own."""
    select: SelectSettings = SelectSettings()
    """Selects tasks of `source`, not of `evaluation` and `validation_source`."""
    train: int = Field(default=512, ge=0)
    """Number of tasks in the training set (curriculum only)."""
    validation: int = Field(default=0, ge=0)
    """Number of tasks in the validation set, of the families seen in training (curriculum only)."""
    test: int = Field(default=160, ge=0)
    """Number of tasks in the test set, of the families seen in training (curriculum only)."""
    unseen: int = Field(default=40, ge=0)
    """Number of tasks in the second test set, of the families never seen in training (curriculum only)."""
    curriculum: Curriculum = "one_bug"
    """Which curriculum: `one_bug` per task; `more_families` (the same, and bugs whose fix writes a name);
    `two_bugs` in two functions; `more_files` (4 to 8 modules that resemble each other; the issue does not say
    which has the bug); or `three_edits` (the same mistake on three lines)."""
    variety: int = Field(default=12, ge=2)
    """Alternatives of each choice in the curriculum (code shape, wording, operator); fewer are easier."""
    seed: Annotated[int, Mark.RUN_SEED] = 0
    """Seed of the curriculum: the same seed and sizes give the same tasks."""

    @model_validator(mode="after")
    def _curriculum_is_generated(self) -> Self:
        if self.source != "curriculum" and self.curriculum != type(self).model_fields["curriculum"].default:
            raise ValueError(
                f"curriculum = {self.curriculum!r} has no effect on the tasks of {self.source}: remove it"
            )
        return self
