"""The base of Hone's errors, and the error for a file that cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

MISUSE = 2  # exit code: misuse of the command line or of a recipe


class HoneError(Exception):
    """A failure that a command reports in its message: what is wrong and what to do."""

    exit_code: ClassVar[int] = 1  # of the command that it ends; MISUSE, where that is the cause


class UsageError(HoneError):
    """The arguments cannot be used; the message says why and what to do."""

    exit_code = MISUSE


@contextmanager
def writing(path: Path, error_type: type[HoneError]) -> Generator[None]:
    """Raise `error_type`, with advice, when the operating system refuses to write at or below `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise error_type(
                f"the disk that holds {path} is full: free some space and run the same command again; "
                "everything written so far is complete"
            ) from error
        raise error_type(
            f"cannot write {path} ({os.strerror(error.errno or 0).lower()}): choose another directory, or "
            "fix that and run the same command again"
        ) from error
