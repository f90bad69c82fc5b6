"""The error of the tasks room."""

from __future__ import annotations


class TaskError(ValueError):
    """A task or a file of tasks cannot be used."""
