"""The log parsers of the SWE-bench harness, edition 4, that differ from those of edition 5.

Each returns the last status of every test in a log, as the word that the log has there. A summary line
`SKIPPED [1] path: reason` counts as a test called `[1]`, and a test's id ends at its first space. Source: the
`swebench` package, version 4.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_WORDS = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_CONTROL = str.maketrans("", "", "".join(map(chr, range(1, 32))))
_COLOUR = re.compile(r"\[\d+m")
_PARAMETER = re.compile(r"(?P<test>.*?)\[(?P<parameter>.*)\]")
Reader = Callable[[str], tuple[str, str] | None]  # of a line: test and status, or None


def _leading(line: str) -> tuple[str, str] | None:
    """Return test and status of a line such as `FAILED test_a.py::test_b - assert 1 == 2`."""
    if not line.startswith(_WORDS):
        return None
    words = line.replace(" - ", " ").split() if line.startswith("FAILED") else line.split()
    return (words[1], words[0]) if len(words) > 1 else None


def _with_short_paths(line: str) -> tuple[str, str] | None:
    """Return the same, with the last part alone of a parameter that is a path: `test[/a/b]` is `test[/b]`."""
    if (found := _leading(line)) is None:
        return None
    name, status = found
    if match := _PARAMETER.search(name):
        parameter = match["parameter"]
        if parameter.startswith("/") and not parameter.startswith("//") and "*" not in parameter:
            parameter = "/" + parameter.split("/")[-1]
        name = f"{match['test']}[{parameter}]"
    return name, status


def _leading_or_trailing(line: str) -> tuple[str, str] | None:
    """Return the same without colours, or of a line such as `test_a.py::test_b PASSED`."""
    line = _COLOUR.sub("", line).translate(_CONTROL)
    if line.startswith(_WORDS) or not line.endswith(_WORDS):
        return _leading(line)
    words = line.split()
    return (words[0], words[1]) if len(words) > 1 else None


def _with_numbered_buttons(line: str) -> tuple[str, str] | None:
    return _leading(line.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def _parser(read: Reader) -> Callable[[str, Any], dict[str, str]]:
    return lambda log, _: dict(filter(None, map(read, log.split("\n"))))


PARSERS: Mapping[str, Callable[[str, Any], dict[str, str]]] = {
    "parse_log_pytest": _parser(_leading),
    "parse_log_pytest_options": _parser(_with_short_paths),
    "parse_log_pytest_v2": _parser(_leading_or_trailing),
    "parse_log_matplotlib": _parser(_with_numbered_buttons),
}
