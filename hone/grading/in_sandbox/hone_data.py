"""Find, in the runner's parent process, data files of the tests that a run changed.

Tests compare with golden files and snapshots in their folders, where the code under test can write. A file
that existed before the run must hold the same bytes after it. New files, and files that runs write by their
nature (`_WRITTEN`), are no evidence. A suite that changes another of its own files is refused at validation,
because the run with the reference patch shows the same evidence.
"""

import os
import re
import stat
from _blake2 import blake2b  # `hashlib` takes several milliseconds longer: it loads OpenSSL

HASHED_BYTES = 16 << 20  # of a longer file, only the size counts
_WRITTEN = re.compile(
    r"(?:^|/)(?:\.[^/]*|__pycache__|out|outputs?|te?mp|caches?|logs?|build|actual)(?:/|$)"
    r"|\.(?:pyc|pyo|log|tmp|lock|db|sqlite3?|db-journal|orig|bak|pid)$",
    re.IGNORECASE,
)


class DataFiles:
    """The files of the tests that are not Python, as they are before any code of the repository runs.

    Args:
        files: further files, below `workdir` as the folders are.
    """

    def __init__(self, workdir: str, folders: "list[str]", files: "list[str]") -> None:
        self.workdir = workdir
        self.known: dict[str, tuple[tuple[int, ...], bytes]] = {}
        for name in [*files, *walk(workdir, folders)]:
            if not name.endswith(".py") and not _WRITTEN.search(name):
                self.remember(name)

    def remember(self, name: str) -> None:
        found = self.stamp(name)
        content = None if found is None else self.digest(name)
        if found is not None and content is not None:
            self.known[name] = (found, content)

    def changed(self) -> "str | None":
        """Return the name of a file that is gone or holds other bytes; None when there is none."""
        for name, (before, content) in self.known.items():
            if self.stamp(name) != before and self.digest(name) != content:
                return name
        return None

    def stamp(self, name: str) -> "tuple[int, ...] | None":
        """Return what every write changes: no process can set the ctime. None: this is no regular file."""
        try:
            found = os.lstat(os.path.join(self.workdir, name))
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    def digest(self, name: str) -> "bytes | None":
        """Return a hash of the file's bytes; None for a file that cannot be read."""
        try:  # no link is followed, and a pipe in the file's place does not block
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(os.path.join(self.workdir, name), flags), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = b"" if size > HASHED_BYTES else file.read()
        except OSError:
            return None
        return blake2b(data, salt=size.to_bytes(8, "big")).digest()


def walk(workdir: str, folders: "list[str]") -> "list[str]":
    """Return the files in folders, as names below `workdir`."""
    found = []
    for folder in folders:
        for place, _, names in os.walk(os.path.join(workdir, folder)):
            found += [os.path.relpath(os.path.join(place, name), workdir) for name in names]
    return found
