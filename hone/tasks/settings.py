"""Settings of the tasks room."""

from __future__ import annotations

from pydantic import Field

from hone.settings import Settings


class TasksSettings(Settings):
    """Which problems a run uses, and how many of each set."""

    source: str = "curriculum"
    """"curriculum" (made from the seed), or the path of a JSONL file whose tasks say `metadata.split`."""
    train: int = Field(default=512, ge=0)
    """Number of tasks in the training set (curriculum only)."""
    validation: int = Field(default=64, ge=0)
    """Number of tasks in the validation set (curriculum only)."""
    test: int = Field(default=160, ge=0)
    """Number of tasks in the test set, of the families seen in training (curriculum only)."""
    unseen: int = Field(default=40, ge=0)
    """Number of tasks in the second test set, of the families never seen in training (curriculum only)."""
    variety: int = Field(default=12, ge=2)
    """Alternatives that each choice of the curriculum (shape of the code, wording, operator) is made from;
    fewer are easier to learn."""
    seed: int = 0
    """Seed of the curriculum: the same seed and sizes give the same tasks."""
