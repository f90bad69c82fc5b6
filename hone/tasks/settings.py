"""Settings of the tasks room."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hone.settings import Settings


class SelectSettings(Settings):
    """Which of the tasks at hand are used; what is not set leaves none out."""

    repositories: tuple[str, ...] = ()
    """Only tasks of these repositories, each "owner/name"."""
    ids_file: Path | None = None
    """Only tasks whose ids this file lists: one to a line; what follows a `#` is not read."""
    difficulty: tuple[str, ...] = ()
    """Only tasks that their data set calls so, such as "<15 min fix" of SWE-bench Verified."""
    min_problem_chars: int = Field(default=0, ge=0)
    """Characters that a problem statement has at least."""
    max_problem_chars: int | None = Field(default=None, ge=1)
    """Characters that a problem statement has at most."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many of the tasks that are left."""
    seed: int | None = None
    """Seed of the order in which tasks come, and are counted against `limit`; without one, as they were."""


class TasksSettings(Settings):
    """Which problems a run uses, and how many of each set."""

    source: str = "curriculum"
    """"curriculum" (made from the seed), or the path of a file of tasks, which may say `metadata.split`."""
    evaluation: Path | None = None
    """A file of tasks, or a data set by its name on the hub, that becomes the test set, in place of the test
    tasks of `source`."""
    allow_overlap: bool = False
    """Whether a task, or a commit of a repository, may be trained on and evaluated with."""
    unproven: bool = False
    """Whether tasks of a file may be trained on that `hone tasks validate -o` has not admitted."""
    select: SelectSettings = SelectSettings()
    """Which tasks of `source` are used; those of `evaluation` all are."""
    train: int = Field(default=512, ge=0)
    """Number of tasks in the training set (curriculum only)."""
    test: int = Field(default=160, ge=0)
    """Number of tasks in the test set, of the families seen in training (curriculum only)."""
    unseen: int = Field(default=40, ge=0)
    """Number of tasks in the second test set, of the families never seen in training (curriculum only)."""
    variety: int = Field(default=12, ge=2)
    """Alternatives that each choice of the curriculum (shape of the code, wording, operator) is made from;
    fewer are easier to learn."""
    seed: int = 0
    """Seed of the curriculum: the same seed and sizes give the same tasks."""
