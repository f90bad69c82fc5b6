"""The options of a repository's pytest configuration that the grader's run keeps.

The run sets `addopts` to nothing, since many options would disturb it. Options that decide which tests exist
and how they behave are passed on the command line:

    kept                                                dropped
    collection: -k -m --deselect --ignore               files and directories: the run names its own
      --ignore-glob --noconftest, doctests ...          --rootdir -c --basetemp --assert: the run sets them
    imports: --import-mode                              output: -v -q -r -l --tb --color --durations ...
    behaviour: -W -o -s --runxfail --log-level          reports: --junit-xml --html --cov ...
      --strict-markers --asyncio-mode ...               stopping, order, processes: -x --maxfail
    -p NAME and -p no:NAME                                --lf --ff --sw --pdb -n --dist --reruns ...
    unknown long options: other plugins or the          -p of a plugin in EXCLUDED_PLUGINS
      repository's conftest.py define them              --strict-config: absent plugins have settings

Plugins in EXCLUDED_PLUGINS are not installed. They are therefore not required, and their markers and settings
are not errors where the configuration makes unknown ones errors.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import iniconfig

from hone.tasks.errors import TaskError

FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Where pytest looks for its configuration; the first file with options counts."""

# Plugins that change the selection, order, processes or reports of tests, that add style checks as tests, and
# one that is now part of pytest.
EXCLUDED_PLUGINS = (
    "nbval", "pytest-black", "pytest-clarity", "pytest-codspeed", "pytest-cov", "pytest-emoji",
    "pytest-fail-slow", "pytest-flake8", "pytest-flakefinder", "pytest-flakes", "pytest-forked",
    "pytest-github-actions-annotate-failures", "pytest-html", "pytest-icdiff", "pytest-instafail",
    "pytest-isort", "pytest-json-report", "pytest-memray", "pytest-mypy", "pytest-parallel", "pytest-pep8",
    "pytest-picked", "pytest-pretty", "pytest-profiling", "pytest-pycodestyle", "pytest-pylint",
    "pytest-random-order", "pytest-randomly", "pytest-reportlog", "pytest-rerunfailures", "pytest-retry",
    "pytest-reverse", "pytest-rich", "pytest-ruff", "pytest-split", "pytest-subtests", "pytest-sugar",
    "pytest-testmon", "pytest-watch", "pytest-watcher", "pytest-xdist", "teamcity-messages",
)  # fmt: skip
_THEIR_MARKERS = (
    "codspeed_benchmark", "fail_slow", "flaky", "forked", "limit_leaks", "limit_memory", "no_cover",
    "random_order", "xdist_group",
)  # fmt: skip

_KEPT_FLAGS = frozenset((
    "--collect-in-virtualenv", "--disable-plugin-autoload", "--doctest-continue-on-failure",
    "--doctest-ignore-import-errors", "--doctest-modules", "--keep-duplicates", "--noconftest", "--pyargs",
    "--runxfail", "--strict", "--strict-markers",
))  # fmt: skip
_KEPT_VALUES = frozenset((
    "--asyncio-mode", "--capture", "--confcutdir", "--deselect", "--doctest-encoding", "--doctest-glob",
    "--hypothesis-profile", "--hypothesis-seed", "--ignore", "--ignore-glob", "--import-mode",
    "--log-disable", "--log-level", "--override-ini", "--pythonwarnings",
))  # fmt: skip
_LEFT_OUT = frozenset((
    "--assert", "--basetemp", "--black", "--boxed", "--cache-clear", "--cache-show", "--co",
    "--code-highlight", "--codespell", "--collect-only", "--color", "--config-file",
    "--continue-on-collection-errors", "--css", "--debug", "--diff-symbols", "--diff-type",
    "--disable-pytest-warnings", "--disable-warnings", "--dist", "--doctest-report", "--durations",
    "--durations-min", "--durations-path", "--emoji", "--exitfirst", "--fail-slow", "--failed-first", "--ff",
    "--fixtures", "--fixtures-per-test", "--flake8", "--flakes", "--force-short-summary", "--force-sugar",
    "--forked", "--full-trace", "--funcargs", "--group", "--help", "--html", "--isort", "--junit-prefix",
    "--junit-xml", "--junitprefix", "--junitxml", "--last-failed", "--last-failed-no-failures", "--lf",
    "--lfnf", "--loadscope-reorder", "--looponfail", "--markers", "--max-warnings",
    "--max-worker-restart", "--maxfail", "--maxprocesses", "--maxschedchunk", "--new-first", "--nf",
    "--no-fold-skipped", "--no-header", "--no-loadscope-reorder", "--no-showlocals", "--no-summary",
    "--numprocesses", "--old-summary", "--only-rerun", "--parallel-threads", "--pastebin", "--pdb",
    "--pdbcls", "--pep8", "--picked", "--pycodestyle", "--pydocstyle", "--pylint", "--quiet",
    "--report-chars", "--report-log", "--report-log-exclude-logs-on-passed-tests", "--rerun-except",
    "--retries", "--retry-delay", "--reverse", "--rich", "--rootdir", "--rsyncdir", "--ruff",
    "--ruff-format", "--self-contained-html", "--setup-only", "--setup-plan", "--setup-show",
    "--show-capture", "--showlocals", "--splits", "--splitting-algorithm", "--stepwise",
    "--stepwise-reset", "--stepwise-skip", "--store-durations", "--strict-config", "--sw", "--sw-reset",
    "--sw-skip", "--tb", "--teamcity", "--testrunuid", "--tests-per-worker", "--trace", "--trace-config",
    "--tx", "--verbose", "--verbosity", "--version", "--workers", "--xfail-tb",
))  # fmt: skip
_LEFT_OUT_LIKE = (
    "--codspeed", "--cov", "--flake-", "--hypothesis-explain", "--hypothesis-show", "--hypothesis-verbosity",
    "--icdiff", "--instafail", "--json-report", "--log-auto", "--log-cli", "--log-date", "--log-file",
    "--log-format", "--memray", "--most-allocations", "--mypy", "--nbval", "--no-cov", "--no-flaky",
    "--no-no-flaky", "--no-success-flaky", "--profile", "--pylint-", "--random-order", "--randomly-",
    "--reruns", "--testmon",
)  # fmt: skip
_SHORT_FLAGS = "dfhlqsvVx"
_SHORT_VALUES = "cknmoprW"
_SHORT_KEPT = "kmopsW"
_WIDE = ("*.py", "test*.py")
_TRUE = ("true", "1", "yes", "on")
_PATHS = (".", "./", "doc", "docs", "src", "test", "testing", "tests", "unit_tests")

Options = Mapping[str, Any]


def pytest_arguments(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the pytest arguments besides `-o addopts=` for a repository with these configuration files.

    Args:
        files: name -> text of those of FILES that are in the repository's root.
    Raises:
        TaskError: the file that pytest would use cannot be parsed.
    """
    for name in FILES:
        if name in files:
            try:
                options = _options(name, files[name])
                if options is not None:
                    return (
                        *kept(_words(options, "addopts"), _words(options, "testpaths")),
                        *_compensations(options),
                    )
            except (ValueError, AttributeError, iniconfig.ParseError) as error:
                raise TaskError(f"the pytest options in {name} cannot be read: {error}") from error
    return ()


def test_globs(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return globs of the test files that the pytest configuration names; empty where it names none.

    `*` matches `/`, too. Raises TaskError; see `pytest_arguments`.
    """
    for name in FILES:
        if name not in files:
            continue
        try:
            options = _options(name, files[name])
        except (ValueError, AttributeError, iniconfig.ParseError) as error:
            raise TaskError(f"the pytest options in {name} cannot be read: {error}") from error
        if options is not None:
            folders = [path.strip("./") for path in _words(options, "testpaths")]
            patterns = _words(options, "python_files")
            places = [f"{folder}/" for folder in folders if folder and not folder.endswith(".py")]
            if not folders:  # patterns of the whole tree, unless they also match source such as testing.py
                places, patterns = ["*/", ""], [each for each in patterns if each not in _WIDE]
            globs = [f"{place}{pattern}" for place in places for pattern in patterns]
            return (*globs, *(path for path in folders if path.endswith(".py")))
    return ()


test_globs.__test__ = False  # type: ignore[attr-defined] - pytest must not collect it


def kept(words: Sequence[str], paths: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the pytest arguments that the table above keeps, in their order.

    An unknown option takes the next word as its value, unless that is another option or one of `paths`, the
    repository's test directories.
    """
    found: list[str] = []
    waiting = list(words)
    places = {*_PATHS, *paths}
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--"):
            found += _long(word, waiting, places)
        elif word.startswith("-"):
            found += _short(word[1:], waiting, places)
    return tuple(found)


def _long(word: str, waiting: list[str], places: set[str]) -> Iterator[str]:
    """Yield a long option and its value if it is kept; a separate value is removed from `waiting`."""
    name, joined, value = word.partition("=")
    if name in _LEFT_OUT or name.startswith(_LEFT_OUT_LIKE) or name == "--":
        return  # a separate value is dropped like a file
    words = [word]
    if name in _KEPT_VALUES and not joined and waiting:
        words.append(value := waiting.pop(0))
    elif name not in _KEPT_FLAGS | _KEPT_VALUES and not joined:
        words += _value_of_unknown(waiting, places)
    if name != "--override-ini" or not value.startswith("addopts"):
        yield from words


def _short(letters: str, waiting: list[str], places: set[str]) -> Iterator[str]:
    """Like `_long` for short options, which may be joined: `-sv`, `-ra`, `-n4`, `-x -k name`."""
    for index, letter in enumerate(letters):
        if letter in _SHORT_FLAGS:
            if letter in _SHORT_KEPT:
                yield f"-{letter}"
            continue
        rest = letters[index + 1 :].removeprefix("=")
        if letter not in _SHORT_VALUES:  # defined by the repository; pytest reserves lower case
            yield f"-{letters[index:]}"
            yield from () if rest else _value_of_unknown(waiting, places)
            return
        value = rest or (waiting.pop(0) if waiting else "")
        hinders = (letter == "p" and _is_excluded(value)) or (letter == "o" and value.startswith("addopts"))
        if letter in _SHORT_KEPT and not hinders:
            yield from (f"-{letter}", value)
        return


def _value_of_unknown(waiting: list[str], places: set[str]) -> list[str]:
    takes = bool(waiting) and not waiting[0].startswith("-") and waiting[0].rstrip("/") not in places
    return [waiting.pop(0)] if takes else []


def _is_excluded(plugin: str) -> bool:
    """Return whether `-p` names a plugin that is not installed, by its module or its short name."""
    name = plugin.lower().split(".")[0].replace("_", "-")
    return name in EXCLUDED_PLUGINS or f"pytest-{name}" in EXCLUDED_PLUGINS


def _compensations(options: Options) -> Iterator[str]:
    """Yield the arguments that compensate for plugins that are not installed."""
    if _words(options, "required_plugins"):
        yield from ("-o", "required_plugins=")
    words = _words(options, "addopts")
    strict = [options.get("strict"), options.get("strict_markers")]
    filters = _lines(options, "filterwarnings")
    # the last -W wins
    errors = any(re.match(r"error\b", line) for line in filters) or any("error" in word for word in words)
    if {"--strict", "--strict-markers"} & set(words) or any(str(one).lower() in _TRUE for one in strict):
        yield from ("-o", "markers=" + "\n".join([*_lines(options, "markers"), *_THEIR_MARKERS]))
    if errors:
        for warning in ("PytestConfigWarning", "PytestUnknownMarkWarning"):
            yield from ("-W", f"ignore::pytest.{warning}")


def _options(name: str, text: str) -> Options | None:
    """Return the pytest options of a file; None when it has none and the next file counts."""
    always = name in FILES[:4]  # pytest's own files end the search even when they are empty
    if name.endswith(".toml"):
        document = tomllib.loads(text)
        if always:
            return document.get("pytest", {})
        table = document.get("tool", {}).get("pytest", {})
        return table.get("ini_options") or {k: v for k, v in table.items() if k != "ini_options"} or None
    sections = iniconfig.IniConfig(name, data=text)
    section = "tool:pytest" if name == "setup.cfg" else "pytest"
    return dict(sections[section].items()) if section in sections else {} if always else None


def _words(options: Options, name: str) -> list[str]:
    value = options.get(name, "")
    return shlex.split(value) if isinstance(value, str) else [str(item) for item in value]


def _lines(options: Options, name: str) -> list[str]:
    value = options.get(name, "")
    lines = value.splitlines() if isinstance(value, str) else [str(item) for item in value]
    return [line.strip() for line in lines if line.strip()]
