"""What the text of an evaluation script says about its verdicts, where a log decides."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from hone.grading.errors import GraderError

_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(?P<end>[\w.-]+)\1")
_SEPARATOR = re.compile(r"&&|\|\||[;|&]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_STATUS = re.compile(r"\b(PASSED|FAILED|XFAIL|SKIPPED|ok|OK)\b")
# Commands that run no tests; a program by any other name may.
_NO_RUNNER = frozenset((
    "", "#", ":", "[", "awk", "cat", "cd", "echo", "exit", "export", "false", "grep", "head", "printf", "pwd",
    "return", "sed", "set", "source", "tail", "tee", "test", "trap", "true", "unset", ".",
))  # fmt: skip


def check_verdicts(whole: str, test: str, named: Collection[str]) -> None:
    """Raise GraderError for a script that prints verdicts itself, whatever the patch does.

    Args:
        whole: the script.
        test: its part between the markers of the test output.
        named: ids of the tests that decide.
    """
    for line in _lines(whole):
        if _STATUS.search(line) and any(name in line for name in named):
            raise GraderError(f"its script prints a verdict itself: {line.strip()[:100]!r}")
    if all(command in _NO_RUNNER for line in _lines(test) for command in _commands(line)):
        raise GraderError("its script runs no program between the markers of its test output")


def _lines(script: str) -> Iterator[str]:
    """Yield the lines of a script outside of here-documents."""
    end = None
    for line in script.splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        yield line
        if document := _HERE_DOCUMENT.search(line):
            end = document["end"]


def _commands(line: str) -> Iterator[str]:
    """Yield the name of each command of a line."""
    for part in _SEPARATOR.split(line):
        words = part.split()
        while words and _ASSIGNMENT.fullmatch(words[0]):
            del words[0]
        yield words[0] if words and not words[0].startswith("#") else ""
