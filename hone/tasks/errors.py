"""The one error of the tasks room."""

from __future__ import annotations


class TaskError(ValueError):
    """A task, or a file of tasks, cannot be used; the message says which, why and what to do."""
