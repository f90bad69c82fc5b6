"""Errors of the view."""

from hone.utils.errors import HoneError


class NotFound(HoneError):
    """A run, rollout, group or task that does not exist, or whose files are missing."""
