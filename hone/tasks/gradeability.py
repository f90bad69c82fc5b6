"""Whether a task can be graded, decided before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Gradeability(StrEnum):
    """Whether the patches of a task can be graded."""

    GRADEABLE = "gradeable"  # on this machine, in a repository of its own or one that lies here
    NEEDS_IMAGE = "needs_image"  # in the image that it names, and nowhere else
    NEEDS_EXTRA = "needs_extra"  # once an optional package of Hone is installed
    REFUSED = "refused"  # never


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The gradeability of one task."""

    status: Gradeability
    reason: str = ""  # one sentence: what is missing, and what to do; empty for a gradeable task
