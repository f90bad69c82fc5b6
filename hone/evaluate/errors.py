"""The error of the evaluate room."""

from __future__ import annotations

import os
from pathlib import Path


class EvaluateError(Exception):
    """An evaluation cannot be run, resumed or compared; the message says what to do."""


def write_error(path: Path, error: OSError) -> EvaluateError:
    """Return the EvaluateError for a path that the operating system refused to write."""
    reason = os.strerror(error.errno or 0).lower()
    return EvaluateError(
        f"cannot write {path} ({reason}): choose another directory, or fix that and run the command again"
    )
