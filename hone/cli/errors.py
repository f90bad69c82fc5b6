"""Turns exceptions into error messages and exit codes.

0 done    1 failed    2 misuse of the command line or of a recipe    130 stopped with Ctrl-C
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hone.utils.errors import MISUSE as MISUSE
from hone.utils.errors import HoneError
from hone.utils.errors import UsageError as UsageError
from hone.utils.extras import EXTRAS

FAILED, STOPPED = 1, 130


class Interrupted(Exception):
    """Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    sentence: str
    exit_code: int


def explain(error: BaseException) -> Failure:
    """Return the message and exit code for an exception that ended a command."""
    for leaf in _leaves(error):
        if isinstance(leaf, HoneError):
            return Failure(sentence=_one_line(leaf), exit_code=leaf.exit_code)
        if isinstance(leaf, (OSError, MemoryError)):
            return Failure(sentence=_system(leaf), exit_code=FAILED)
        if isinstance(leaf, ModuleNotFoundError) and leaf.name in EXTRAS:
            needed = f"this command needs {leaf.name}: pip install 'hone-rl[{EXTRAS[leaf.name]}]'"
            return Failure(sentence=needed, exit_code=FAILED)
    sentence = (
        f"unexpected error: {type(error).__name__}: {_one_line(error)}. This is a defect of Hone: run the "
        "same command with --debug and report the traceback"
    )
    return Failure(sentence=sentence, exit_code=FAILED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a task group, without their causes."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _system(error: OSError | MemoryError) -> str:
    """Return the message of an operating-system error, with advice for the common ones."""
    if isinstance(error, MemoryError):
        return "out of memory: lower engine.max_batch or rollout.concurrent_episodes, then run it again"
    path = error.filename2 or error.filename  # of a copy: its target
    where = f" ({path})" if path else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}: free some space and run the same command again; nothing is lost"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files: raise the limit (ulimit -n 4096), or lower rollout.concurrent_episodes"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission{where}: choose another run_dir, or change the owner of this one"
    if error.errno == errno.EADDRINUSE:
        found = re.search(r"\('(?P<host>[^']+)', (?P<port>\d+)", str(error))
        port = f"port {found['port']} of {found['host']}" if found else "the port"
        return f"{port} cannot be used ({os.strerror(errno.EADDRINUSE)}): choose another one with --port"
    if isinstance(error, TimeoutError) and not error.args:
        return "an operation took too long, as on a busy machine: run the same command again to continue"
    return f"{error.strerror or _one_line(error)}{where}"
