"""Where a project keeps its tests, by its own configuration of pytest, unittest and CI."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hone.curate.files import Kind, kind_of
from hone.tasks.configuration import FILES, test_globs
from hone.tasks.repository import Repository

_COMMANDS = re.compile(
    r"(tox\.ini|Makefile|noxfile\.py|\.travis\.yml|\.github/workflows/[^/]+\.ya?ml|setup\.py)"
)
_TEST = re.compile(r"^\s*(?:async )?def test", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:async )?def test", re.MULTILINE)
_CASE = re.compile(r"^class .*TestCase\b.*:", re.MULTILINE)
_RUN = re.compile(r"\b(?:pytest|py\.test|unittest|nosetests|coverage +run|python[\d.]*)\b(?P<rest>.*)")
_SCRIPT = re.compile(r"(?<![\w*./-])(?:\./)?([\w./-]*test[\w-]*\.py)\b")
_DISCOVER = re.compile(
    r"\bdiscover\b(?=.*?(?:-s|--start-directory)[ =][\"']?(?P<start>[\w./-]+))?"
    r"(?=.*?(?:-p|--pattern)[ =][\"']?(?P<pattern>[\w.*?-]+))?"
)
_SUITE = re.compile(r"\btest_suite\s*=\s*[\"']([\w.]+)[\"']")


def configured_tests(repository: Repository, commit: str) -> tuple[str, ...]:
    """Return globs of the tests that the configuration at a commit names; see `hone.curate.files.matches`.

    Raises TaskError when git fails or the configuration of pytest cannot be parsed.
    """
    files = repository.files(commit)
    texts = repository.texts(commit, [path for path in files if path in FILES or _COMMANDS.fullmatch(path)])
    found = list(test_globs({name: text for name, text in texts.items() if name in FILES}))
    for text in texts.values():
        for line in text.splitlines():
            found += _named_in(line)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFiles:
    """The files of a commit that hold tests, by their framework; Hone runs both with pytest."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    pytest: tuple[str, ...]
    unittest: tuple[str, ...]  # every test is a method of a TestCase

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted((*self.pytest, *self.unittest)))


def find_test_files(repository: Repository, commit: str, globs: Collection[str]) -> TestFiles:
    """Return the test files of a commit, wherever they lie. Raises TaskError when git fails.

    Args:
        globs: of tests, besides those with the names of tests; see `configured_tests`.
    """
    paths = [path for path in repository.files(commit) if path.endswith(".py")]
    tests = [path for path in paths if kind_of(path, globs) is Kind.TEST]
    texts = {path: text for path, text in repository.texts(commit, tests).items() if _TEST.search(text)}
    unittest = [path for path, text in texts.items() if _CASE.search(text) and not _FUNCTION.search(text)]
    return TestFiles(pytest=tuple(path for path in texts if path not in unittest), unittest=tuple(unittest))


def _named_in(line: str) -> Iterator[str]:
    """Yield the test scripts, directories and modules that a line of commands or packaging names."""
    if suite := _SUITE.search(line):
        module = suite[1].replace(".", "/")
        yield from (module, f"{module}.py")
    run = _RUN.search(line)
    if run is None:
        return
    yield from _SCRIPT.findall(run["rest"])
    if (discover := _DISCOVER.search(run["rest"])) and discover["pattern"] not in (None, "test*.py"):
        start = (discover["start"] or "").strip("./")
        place = f"{start}/" if start else ""
        yield from (f"{place}{discover['pattern']}", f"{place}*/{discover['pattern']}")
