"""Evidence in pytest's configuration: deselected or ignored tests, loaded plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch

from hone.grading.integrity.changes import Change
from hone.grading.integrity.patch_context import PatchContext
from hone.grading.integrity.plugins import covers
from hone.tasks.configuration import FILES

_OPTION = re.compile(r"\s*[\"']?([A-Za-z_][\w.-]*)[\"']?\s*[=:](?!=)\s*(.*)$")
_PLUGINS_OF_CORE = {"main", "python", "runner", "unittest", "skipping", "terminal", "fixtures", "reports"}
_NEVER_RUNS = {
    "--co", "--collect-only", "--collectonly", "--setup-only", "--setup-plan", "--version", "--help", "-h",
    "--fixtures", "--markers", "--noconftest", "-x", "--exitfirst", "--lf", "--last-failed", "--sw",
    "--stepwise",
}  # fmt: skip
_REDIRECTS = {"-c", "--config-file", "-o", "--override-ini", "--rootdir", "--confcutdir", "--maxfail", "-k"}


def scan_configuration(change: Change, context: PatchContext) -> str | None:
    """Scan pytest options that exclude tests or load plugins; see `hone.grading.integrity.scan`."""
    if change.name not in FILES or change.deleted:
        return None
    options = _added_options(change)
    for name, check in _CHECKS.items():
        if options.get(name) and (reason := check(options[name], context)):
            return f"changes pytest's {name} so that {reason}"
    return None


def _added_options(change: Change) -> dict[str, list[str]]:
    """Return option -> the new words in its value."""
    known = {word for text in change.lines("-") for word in _words(text)}
    added: dict[str, list[str]] = {}
    for hunk in change.hunks:
        name = (
            "addopts" if change.name.endswith("pytest.ini") else ""
        )  # the option of a hunk that starts inside a value
        for sign, text in hunk.after:
            match = (
                None
                if text.startswith((" ", "\t")) and change.name.endswith(("ini", "cfg"))
                else _OPTION.match(text)
            )
            if match is not None:
                name = match[1].rpartition(".")[2]
            elif text.lstrip().startswith("[") and text.rstrip().endswith("]") and "=" not in text:
                name = ""
            if sign == "+":
                words = _words(match[2] if match is not None else text)
                added.setdefault(name, []).extend(words)
    return {name: words for name, words in added.items() if any(word not in known for word in words)}


def _words(text: str) -> list[str]:
    text = re.sub(r"(?:^|\s)[#;].*$", "", text)
    return re.sub(r"[\[\],\"'\\]", " ", text).split()


def _addopts(words: list[str], context: PatchContext) -> str | None:
    pairs = zip(words, [*words[1:], ""], strict=True)
    for word, following in pairs:
        option, _, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in ("-p", "-k", "-m", "-c", "-o"):
            option, value = word[:2], word[2:]
        value = value or following
        if option in _NEVER_RUNS or option in _REDIRECTS:
            return f"not every test is run as it was: {word!r}"
        if option == "-p" and not context.about_pytest and not _only_off(value):
            return f"a plugin is loaded: {value!r}"
        if option == "-m" and value.lower() not in ("not", "("):
            return f"unmarked tests are deselected: {value!r}"
        if option in ("--ignore", "--ignore-glob", "--deselect") and _hides(value, context):
            return f"graded tests are excluded: {value!r}"
    return None


def _only_off(value: str) -> bool:
    return value.startswith("no:") and value.removeprefix("no:") not in _PLUGINS_OF_CORE


def _hides(value: str, context: PatchContext) -> bool:
    path, _, name = value.partition("::")
    name = name.split("[")[0].rpartition("::")[2] or name
    return any(
        covers(path, test) and (not name or name in functions or name[:1].isupper())
        for test, functions in context.tests.items()
    )


def _python_files(words: list[str], context: PatchContext) -> str | None:
    for test in context.tests:
        if not any(fnmatch(test.rpartition("/")[2], word) or fnmatch(test, f"*{word}") for word in words):
            return f"{test} is not collected"
    return None


def _python_functions(words: list[str], context: PatchContext) -> str | None:
    names = ((test, name) for test, functions in context.tests.items() for name in functions)
    for test, name in names:
        if name.startswith("test") and not any(name.startswith(w) or fnmatch(name, w) for w in words):
            return f"{test}::{name} is not collected"
    return None


def _python_classes(words: list[str], _context: PatchContext) -> str | None:
    collected = any("Test".startswith(word) or fnmatch("TestX", word) for word in words)
    return None if collected else "test classes are not collected"


def _testpaths(words: list[str], context: PatchContext) -> str | None:
    inside = any(word in (".", "*") or covers(word, test) for word in words for test in context.tests)
    return None if inside else "the graded tests lie outside"


def _norecursedirs(words: list[str], context: PatchContext) -> str | None:
    for test in context.tests:
        if any(fnmatch(folder, word.rstrip("/")) for folder in test.split("/")[:-1] for word in words):
            return f"{test} is not collected"
    return None


_CHECKS: Mapping[str, Callable[[list[str], PatchContext], str | None]] = {
    "addopts": _addopts,
    "python_files": _python_files,
    "python_functions": _python_functions,
    "python_classes": _python_classes,
    "testpaths": _testpaths,
    "norecursedirs": _norecursedirs,
}
