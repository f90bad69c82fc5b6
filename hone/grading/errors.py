"""Errors of grading."""

from __future__ import annotations


class GraderError(Exception):
    """There is no verdict, and the patch did not cause that: an infrastructure failure."""


class LogRefused(Exception):
    """A test log is not of a complete run, so it gives no verdict."""
