"""Issue texts from failing tests, for people and agents that have not seen the fix.

Everything in them comes from the tests: the statements that fail and the errors that pytest shows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from hone.curate.examples import Example, find_example

_NOT_PACKAGES = {"src", "lib"}
_MIN_LEAK = 12  # characters of a changed line, without blanks; shorter lines, such as `else:`, reveal nothing
_ASSERTION = re.compile(r"(AssertionError|assert |Failed: )")
_TITLE = re.compile(r"^_{3,} (?:ERROR (?:at (?:setup|teardown) of|collecting) )?(.+?) _{3,}$")
_END = re.compile(r"^(=+ .* =+|-+ Captured .* -+)$")
_FRAME = re.compile(r"^(?P<path>[^\s:]+\.py):(?P<line>\d+): (?:in \S+|[A-Z]\w*)")
_IMPORTED = re.compile(r"^(?P<kind>\w+) while it was imported: (?P<text>.*)$")  # as the runner shows it
_NOISE = re.compile(r"^(\+ |Use -v to get more diff)")  # how pytest computed a value; advice of pytest's
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LINES = 8  # of a message


def write_statement(
    groups: Sequence[Sequence[Failure]], sources: Mapping[str, str], modules: Iterable[str]
) -> str | None:
    """Return an issue text with one example of each group; None where a group has no example of its own.

    Args:
        groups: failures; of a bug in several places, one group for each place.
        sources: path -> text of the test files.
        modules: paths of the code under test.
    """
    parts = (PurePosixPath(path).with_suffix("").parts for path in modules)
    packages = {next((part for part in each if part not in _NOT_PACKAGES), "") for each in parts}
    chosen: dict[str, tuple[Failure, Example]] = {}
    for group in groups:
        found = _clearest(group, sources, packages)
        if found is None or found[0].test in chosen:
            return None
        chosen[found[0].test] = found
    title = " and ".join(dict.fromkeys(_title(*each) for each in chosen.values()))
    return "\n\n".join([title, *(_describe(*each) for each in chosen.values())]) + "\n"


def _clearest(
    group: Sequence[Failure], sources: Mapping[str, str], packages: Collection[str]
) -> tuple[Failure, Example] | None:
    """Return the failure whose example needs the least explanation: it names a function and is short."""
    options: list[tuple[Failure, Example]] = []
    for failure in group:
        source = sources.get(failure.test.split("::")[0], "")
        example = find_example(source, failure.test, failure.line, packages)
        if example is not None:
            options.append((failure, example))
    return min(options, key=_difficulty, default=None)


def _difficulty(option: tuple[Failure, Example]) -> tuple[bool, bool, int]:
    failure, example = option
    return not example.subject, bool(example.parameters), len(example.code) + len(failure.message)


def _title(failure: Failure, example: Example) -> str:
    words = test_words(failure.test)
    subject = f"`{example.subject}`" if example.subject else words
    if _ASSERTION.match(failure.message) or not failure.message:
        return f"{subject} gives a wrong result" + (f" ({words})" if example.subject else "")
    return f"{subject} raises {failure.message.partition(':')[0].splitlines()[0]}"


def _describe(failure: Failure, example: Example) -> str:
    parameters = f"With the parameters `{example.parameters}`, the" if example.parameters else "The"
    parts = [f"```python\n{example.code}\n```", f"{parameters} last statement fails:"]
    return "\n\n".join([*parts, f"```\n{failure.message or 'AssertionError'}\n```"])


def changed_lines(patch: str, signs: str = "+") -> frozenset[str]:
    """Return the lines that a patch adds (`+`) or removes (`-`) and that are long enough to reveal it."""
    lines = [" ".join(line[1:].split()) for line in patch.splitlines() if line[:1] in tuple(signs)]
    headers = ("++ ", "-- ")
    return frozenset(
        line for line in lines if len(line.replace(" ", "")) >= _MIN_LEAK and not line.startswith(headers)
    )


def find_leak(text: str, lines: Iterable[str]) -> str | None:
    """Return the first of the changed lines that the text repeats, however it is wrapped; None if none."""
    flat = " ".join(text.split())
    return min((line for line in lines if line in flat), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    test: str  # its id
    line: int  # of the test file: the statement of the test that failed
    message: str  # of the last error of a chain, without memory addresses


def parse_failures(log: str, failing: Iterable[str]) -> list[Failure]:
    """Return the failures of the `failing` tests that the log still shows, in its order.

    The log is that of a pytest run with `--tb=short --assert=rewrite`.

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


def parse_messages(log: str, files: Collection[str]) -> dict[str, str]:
    """Return file -> the last error of its first failure that the log still shows; see `parse_failures`."""
    found: dict[str, str] = {}
    for title, lines in _sections(log):
        imported = next(filter(None, map(_IMPORTED.match, lines)), None)
        if title in files and imported is not None:
            found.setdefault(title, f"{imported['kind']}: {imported['text']}")
        paths = [m["path"] for m in map(_FRAME.match, lines) if m and m["path"] in files]
        if paths:
            found.setdefault(paths[0], _message(lines))
    return found


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
