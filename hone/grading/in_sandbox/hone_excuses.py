"""Find, inside the test process, who skips a test or expects it to fail: the tests or the code under test."""

import types
from typing import Any

from hone_pytest import get_unpacked_marks, marks_named  # beside this file


def raising_code(error: BaseException, workdir: str) -> "types.CodeType | None":
    """Return the innermost code of the repository that raised an exception; None: no code of it did."""
    found: types.CodeType | None = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(workdir + "/") and "/site-packages/" not in code.co_filename:
            found = code
        trace = trace.tb_next
    if found is None and error.__context__ is not None:  # pytest raises its own for unittest's
        return raising_code(error.__context__, workdir)
    return found


def has_xfail(item: Any, *, added: bool) -> bool:
    """Return whether a mark, or unittest's decorator, makes a test expected to fail.

    Args:
        added: whether a mark counts that only the item has, not its function, class or module.
    """
    nodes = [vars(node).get("_obj") for node in item.listchain()]
    owners = [owner for owner in (*nodes, getattr(item, "obj", None)) if owner is not None]
    if any(getattr(owner, "__unittest_expecting_failure__", False) for owner in owners):
        return True
    marks = marks_named("xfail", item)
    own = [mark for owner in owners for mark in get_unpacked_marks(owner)]
    own += getattr(getattr(item, "callspec", None), "marks", ())
    return any(added or any(mark is each for each in own) for mark in marks)
