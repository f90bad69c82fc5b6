"""Names in a row that are no tests, but words that a test printed into the harness's log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_PROGRESS = re.compile(r"\[ *\d+%\]")  # what pytest prints behind a result
_TEST_OUTPUT = re.compile(r"Start Test Output'?\n(.*)\n.*End Test Output")


def printed_names(names: Iterable[str], script: str) -> tuple[str, ...]:
    """Return the names that no test of the script's command can have, where it runs single files with pytest.

    Tests of pytest run pytest on files that they write, and show its output: the harness's parser then reads
    `PASSED [100%]` or `PASSED test_inner.py::test_hello`. What these lines say, their test has checked.
    """
    files = _files_run(script)
    return tuple(name for name in names if files and not _may_be_test(name, files))


def _may_be_test(name: str, files: Iterable[str]) -> bool:
    file, colons, _ = name.partition("::")
    if not colons:
        return _PROGRESS.fullmatch(name) is None
    return any(f"/{path}".endswith(f"/{file}") for path in files)


def _files_run(script: str) -> tuple[str, ...]:
    """Return the Python files at the end of a script's test command; none if it is not pytest on files."""
    found = _TEST_OUTPUT.search(script)
    try:
        words = shlex.split(found[1]) if found else []
    except ValueError:
        return ()
    if not any(word in ("pytest", "py.test") or word.endswith("/pytest") for word in words):
        return ()
    files: list[str] = []
    while words and words[-1].endswith(".py"):
        files.append(words.pop())
    return tuple(files)
