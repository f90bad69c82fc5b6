"""Errors of grading."""

from __future__ import annotations

from hone.utils.errors import HoneError


class GraderError(HoneError):
    """There is no verdict, and the patch did not cause that: an infrastructure failure."""


class MissingExtra(GraderError):
    """An optional package of Hone is not installed, without which these tests cannot be graded."""


class LogRefused(Exception):
    """A test log is not of a complete run, so it gives no verdict."""
