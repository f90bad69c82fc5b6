"""The error of the tasks room."""

from __future__ import annotations

from hone.utils.errors import HoneError


class TaskError(HoneError, ValueError):
    """A task or a file of tasks cannot be used."""
