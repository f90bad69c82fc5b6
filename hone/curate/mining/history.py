"""The history of a repository along first parents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from hone.tasks.repository import Repository

_COUNTS = re.compile(r"\n?(\d+|-)\t(\d+|-)\t(.*)", re.DOTALL)
_MARK = "commit:"
_FORMAT = f"tformat:{_MARK}%H%x00%P%x00%ct%x00%B%x00"
# Explicit options, so that the repository's configuration cannot change a diff.
DIFF = (
    *("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    path: str
    lines: int  # added plus deleted; 0 for a binary file


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCommit:
    """One commit and its changes against the first parent."""

    id: str
    base: str  # id of its first parent
    parents: int
    date: str  # committer date, ISO 8601, UTC
    message: str
    changes: tuple[FileChange, ...]


def walk(repository: Repository, branch: str = "HEAD", since: datetime | None = None) -> list[HistoryCommit]:
    """Return the commits of a branch that have a parent, newest first; a merge counts as one commit.

    Raises TaskError when the branch does not exist.
    """
    tip = repository.commit(branch)
    bound = [f"--since={int(since.timestamp())}"] if since else []
    log = repository.git(
        *("log", "-z", "--first-parent", "--diff-merges=first-parent", "--numstat", "--encoding=UTF-8"),
        *("--no-renames", "--no-ext-diff", "--no-color", f"--format={_FORMAT}"),
        *(*bound, tip, "--"),
    )
    return list(_parse(log.decode("utf-8", "surrogateescape").split("\0")))


def _parse(tokens: list[str]) -> Iterator[HistoryCommit]:
    at = 0
    while at < len(tokens):
        if not tokens[at].startswith(_MARK):
            at += 1
            continue
        commit, parents, seconds, message = tokens[at : at + 4]
        at += 4
        changes: list[FileChange] = []
        while at < len(tokens) and not tokens[at].startswith(_MARK):
            if found := _COUNTS.fullmatch(tokens[at]):
                added, deleted, path = found.groups()
                lines = 0 if "-" in (added, deleted) else int(added) + int(deleted)
                changes.append(FileChange(path=path, lines=lines))
            at += 1
        if parents:
            yield HistoryCommit(
                id=commit.removeprefix(_MARK),
                base=parents.split()[0],
                parents=len(parents.split()),
                date=datetime.fromtimestamp(int(seconds), UTC).isoformat(),
                message=message.strip(),
                changes=tuple(changes),
            )


def merged_messages(repository: Repository, commit: HistoryCommit) -> list[str]:
    """Return the messages of the commits that a merge brings in, oldest first; none for other commits."""
    if commit.parents < 2:
        return []
    log = repository.git(
        "log",
        "-z",
        "--no-merges",
        "--reverse",
        "--encoding=UTF-8",
        "--format=%B",
        f"{commit.base}..{commit.id}",
    )
    return [text.strip() for text in log.decode("utf-8", "replace").split("\0") if text.strip()]


def diff(repository: Repository, commit: HistoryCommit, paths: Iterable[str]) -> str:
    """Return the changes of a commit in `paths` as a patch for `git apply`; empty without paths."""
    literal = [f":(literal,top){path}" for path in paths]
    if not literal:
        return ""
    patch = repository.git("diff", *DIFF, commit.base, commit.id, "--", *literal)
    return patch.decode("utf-8", "surrogateescape")
