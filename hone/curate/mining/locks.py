"""Locked requirements of the commits in a history, resolved once for all trees with equal metadata."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from pathlib import PurePosixPath

from hone.curate.mining.candidates import CommitRejected, Reason
from hone.tasks.errors import TaskError
from hone.tasks.local import lock_commit
from hone.tasks.python import Locked
from hone.tasks.repository import Repository
from hone.utils.text import digest

_METADATA = (
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "*requirements*",
    "Pipfile*",
    "PKG-INFO",
    "*.lock",
)
_DEEPEST = 3  # path components of the deepest packaging file
_VERSION_LINE = re.compile(r"^.*version.*=.*$", re.MULTILINE | re.IGNORECASE)
_TAG = re.compile(r"\d+(?:\.\d+)+(?:\.?(?:a|b|rc|post|dev)\d+)?")


class LockCache:
    """Resolves and caches the requirements of commits, one at a time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[str, Locked | CommitRejected] = {}
        self._mutex = asyncio.Lock()

    async def lock(self, commit: str) -> Locked:
        """Return the requirements of a commit. Raises CommitRejected when they cannot be resolved."""
        async with self._mutex:
            key = await asyncio.to_thread(self._key, commit)
            if key not in self._known:
                self._known[key] = await asyncio.to_thread(self._lock, commit)
        found = self._known[key]
        if isinstance(found, CommitRejected):
            raise CommitRejected(found.reason, found.detail)
        return found

    def _key(self, commit: str) -> str:
        """Return a hash of everything that a lock depends on: packaging files, modules and the version."""
        files = self._repository.files(commit)
        packaging = [path for path in files if _is_packaging_file(path)]
        modules = [path for path in files if path.endswith(".py") and path.count("/") < _DEEPEST]
        named = [
            path for path in modules if "version" in path or path.endswith(("__init__.py", "__about__.py"))
        ]
        versions = self._repository.texts(commit, named)
        lines = {path: _VERSION_LINE.findall(text) for path, text in versions.items()}
        return digest([self._repository.texts(commit, packaging), lines, modules, self._version(commit)])

    def _lock(self, commit: str) -> Locked | CommitRejected:
        try:
            return lock_commit(self._repository, commit, version=self._version(commit))
        except TaskError as error:
            return CommitRejected(Reason.NO_ENVIRONMENT, str(error))

    def _version(self, commit: str) -> str:
        """Return the version of the last tag, for builds that ask version control."""
        try:
            tag = self._repository.git("describe", "--tags", "--abbrev=0", "--match=*[0-9].[0-9]*", commit)
        except TaskError:
            return ""  # git fails so when there is no tag
        found = _TAG.search(tag.decode("utf-8", "replace"))
        return found[0] if found else ""


def _is_packaging_file(path: str) -> bool:
    parts = PurePosixPath(path)
    in_requirements = "requirements" in parts.parts[:-1]
    by_name = any(fnmatch.fnmatch(parts.name, pattern) for pattern in _METADATA)
    return (by_name or in_requirements) and len(parts.parts) <= _DEEPEST
