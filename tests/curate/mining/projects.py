"""A small project with a history, for tests of mining."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

BASE = {
    "shop/__init__.py": '"""A shop."""\n\nfrom shop.prices import total\n\n__all__ = ["total"]\n',
    "shop/prices.py": 'def total(prices):\n    """The sum of all prices."""\n    return sum(prices[1:])\n',
    "tests/test_prices.py": (
        "from shop import total\n\n\ndef test_of_nothing():\n    assert total([]) == 0\n"
    ),
    "pyproject.toml": (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        '[project]\nname = "shop"\nversion = "1.0"\n\n[tool.setuptools]\npackages = ["shop"]\n'
    ),
    "CHANGES.md": "# Changes\n\n## 1.0\n\n- First release\n",
}
FIXED = 'def total(prices):\n    """The sum of all prices."""\n    return sum(price for price in prices)\n'
TESTS = BASE["tests/test_prices.py"] + "\n\ndef test_of_three():\n    assert total([1, 2, 3]) == 6\n"

# `shop/names.py`: so that there is something to seed bugs in.
NAMES = """\
def title(name):
    words = [word for word in name.split(" ") if word]
    return " ".join(word[:1].upper() + word[1:] for word in words)


def shorten(name, length=10, end="..."):
    if len(name) <= length:
        return name
    return name[: length - len(end)] + end
"""


class Project:
    """A git repository that grows commit by commit, a day apart."""

    def __init__(self, folder: Path, files: Mapping[str, str] = BASE) -> None:
        self.folder, self._day = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("Begin", files)

    def git(self, *arguments: str) -> str:
        when = f"{1_600_000_000 + 86_400 * self._day} +0000"
        who = {f"GIT_{role}_{what}": "me" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "GIT_AUTHOR_DATE": when,
                "GIT_COMMITTER_DATE": when,
                **who,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, files: Mapping[str, str | bytes | None]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_bytes(text.encode() if isinstance(text, str) else text)

    def commit(self, message: str, files: Mapping[str, str | bytes | None]) -> str:
        self._day += 1
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")
