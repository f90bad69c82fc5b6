"""The error of the evaluate room."""

from __future__ import annotations

from hone.utils.errors import HoneError


class EvaluateError(HoneError):
    """An evaluation cannot be run, resumed or compared; the message says what to do."""
