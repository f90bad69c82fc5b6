"""Errors of the rollout room."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class RolloutError(Exception):
    """A step cannot be completed; the message says what to do."""


class LedgerError(Exception):
    """The ledger does not balance, refuses a change, or cannot be opened."""


class StoreError(Exception):
    """A rollout cannot be written or read; the message says what to do."""


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the StoreError for a file below `path` that the operating system refused to write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {path} is full: free some space and run the same command again; everything "
            "written so far is complete"
        )
    return StoreError(
        f"cannot write {path}: {os.strerror(error.errno or 0)}; fix that and run the same command again"
    )
