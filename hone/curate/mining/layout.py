"""Where a project keeps its tests, by its own configuration of pytest, unittest and CI."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hone.tasks.configuration import FILES, test_globs
from hone.tasks.repository import Repository

_COMMANDS = re.compile(
    r"(tox\.ini|Makefile|noxfile\.py|\.travis\.yml|\.github/workflows/[^/]+\.ya?ml|setup\.py)"
)
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
