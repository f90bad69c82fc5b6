"""Failing tests, parsed from the log of a pytest run with `--tb=short --assert=rewrite`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_TITLE = re.compile(r"^_{3,} (?:ERROR (?:at (?:setup|teardown) of|collecting) )?(.+?) _{3,}$")
_END = re.compile(r"^(=+ .* =+|-+ Captured .* -+)$")
_FRAME = re.compile(r"^(?P<path>[^\s:]+\.py):(?P<line>\d+): (?:in \S+|[A-Z]\w*)")
_NOISE = re.compile(r"^(\+ |Use -v to get more diff)")  # how pytest computed a value; advice of pytest's
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LINES = 8  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    test: str  # its id
    line: int  # of the test file: the statement of the test that failed
    message: str  # of the last error of a chain, without memory addresses


def parse_failures(log: str, failing: Iterable[str]) -> list[Failure]:
    """Return the failures of the `failing` tests that the log still shows, in its order.

    Args:
        failing: test ids.
    """
    by_title: dict[str, list[str]] = {}
    for test in failing:
        by_title.setdefault(".".join(test.split("::")[1:]), []).append(test)
    found: dict[str, Failure] = {}
    for title, lines in _sections(log):
        frames = [(m["path"], int(m["line"])) for m in map(_FRAME.match, lines) if m]
        for test in by_title.get(title, ()):
            own = [line for path, line in frames if path == test.split("::")[0]]
            if own and test not in found:
                found[test] = Failure(test=test, line=own[0], message=_message(lines))
    return list(found.values())


def _sections(log: str) -> list[tuple[str, list[str]]]:
    sections: list[tuple[str, list[str]]] = []
    inside = False
    for line in log.splitlines():
        if heading := _TITLE.match(line):
            sections.append((heading[1], []))
            inside = True
        elif _END.match(line):
            inside = False
        elif inside:
            sections[-1][1].append(line)
    return sections


def _message(lines: Sequence[str]) -> str:
    """Return the last run of `E` lines: the last error of a chain."""
    message: list[str] = []
    previous = ""
    for line in lines:
        if line.startswith("E "):
            message = [*(message if previous.startswith("E ") else []), line[4:]]
        previous = line
    kept = [line.rstrip() for line in message if line.strip() and not _NOISE.match(line.strip())]
    return _ADDRESS.sub("", "\n".join(kept[:_LINES]))


def test_words(test: str) -> str:
    """Return the name of a test as words.

    Example: "tests/test_url.py::TestUrl::test_no_scheme[a]" -> "no scheme".
    """
    name = test.partition("[")[0].rpartition("::")[2]
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return " ".join(part for part in name.removeprefix("test").split("_") if part) or "the basic case"


test_words.__test__ = False  # type: ignore[attr-defined] - pytest must not collect it
