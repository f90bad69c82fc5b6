"""Decide, in the runner's parent process, which tests may end as skipped or xfailed.

Code under test can put a mark on a test, as it can change any object in its process. It cannot change the
text of the tests, which the parent read before. So the parent counts `skipped` or `xfailed` only where that
text has a word for it. The words are many, because an honest skip that counts as a failure is worse than a
hole; where a reference run is known, `Checks.excused` names the tests exactly.
"""

import os
import re

# `with_checks`: scikit-learn's decorator, whose marks come from the estimators that it checks
WORDS = {
    "xfailed": re.compile(rb"xfail|(?:expect(?:ed|ing)|known)_?fail|with_checks", re.IGNORECASE),
    "skipped": re.compile(
        rb"skip|require|need|unless|async\s+def|mark\.(?!(?:parametrize|usefixtures|filterwarnings|xfail)\b)",
        re.IGNORECASE,
    ),
}
_BY_FOLDER = ("conftest.py", "__init__.py")  # pytest or Python loads them before the tests below


class Texts:
    """The trusted texts of one run, by path."""

    def __init__(self, workdir: str, sources: "dict[str, bytes]") -> None:
        self.workdir, self.sources = workdir, sources
        self.by_stem: dict[bytes, list[str]] = {}
        for path in sources:
            self.by_stem.setdefault(stem(path), []).append(path)
        self.known: dict[tuple[str, str], bool] = {}  # file and status -> whether the text has a word for it

    def may_end_as(self, test: str, status: str) -> bool:
        """Return whether a test may end with a status; a file that is no trusted text may with any."""
        path = os.path.join(self.workdir, test.split("::")[0])
        if status not in WORDS or path not in self.sources:
            return True
        if (path, status) not in self.known:
            texts = (self.sources[each] for each in self.related(path))
            self.known[path, status] = any(WORDS[status].search(text) for text in texts)
        return self.known[path, status]

    def related(self, path: str) -> "set[str]":
        """Return the file, those that it names, those that they name, and what its folders configure."""
        found: set[str] = set()
        pending = [path]
        while pending:
            path = pending.pop()
            if path in found or path not in self.sources:
                continue
            found.add(path)
            for word in set(re.findall(rb"\w+", self.sources[path])) & self.by_stem.keys():
                pending += self.by_stem[word]
            folder = os.path.dirname(path)
            while folder.startswith(self.workdir):
                pending += [os.path.join(folder, name) for name in _BY_FOLDER]
                folder = os.path.dirname(folder)
        return found


def stem(path: str) -> bytes:
    """Return the name by which Python imports a file from its folder."""
    folder, name = os.path.split(path)
    name = os.path.basename(folder) if name == "__init__.py" else os.path.splitext(name)[0]
    return name.encode("utf-8", "surrogateescape")
