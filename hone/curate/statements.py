"""Issue texts from failing tests, for people and agents that have not seen the fix.

Everything in them comes from the tests: the statements that fail and the errors that pytest shows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from hone.curate.examples import Example, find_example
from hone.curate.failures import Failure, test_words

_SHOWN_TESTS = 6
_MIN_LEAK = 12  # characters of a changed line, without blanks; shorter lines, such as `else:`, reveal nothing
_ASSERTION = re.compile(r"(AssertionError|assert |Failed: )")


def write_statement(
    groups: Sequence[Sequence[Failure]], sources: Mapping[str, str], packages: Collection[str]
) -> str | None:
    """Return an issue text with one example of each group; None where a group has no example of its own.

    Args:
        groups: failures; of a bug in several places, one group for each place.
        sources: path -> text of the test files.
        packages: top-level names of the packages under test.
    """
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


def list_failures(tests: Sequence[str], failures: Iterable[Failure]) -> str:
    """Return a list of failing tests in words, for tests that no example can show."""
    messages = {failure.test.partition("[")[0]: " ".join(failure.message.split()) for failure in failures}
    names = list(dict.fromkeys(test.partition("[")[0] for test in tests))
    lines = [f"- {test_words(name)}{_in_brackets(messages.get(name, ''))}" for name in names[:_SHOWN_TESTS]]
    more = [f"- and {len(names) - _SHOWN_TESTS} more"] if len(names) > _SHOWN_TESTS else []
    return "\n".join(["This does not work:", "", *lines, *more])


def _in_brackets(message: str) -> str:
    return f" ({message})" if message else ""


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
