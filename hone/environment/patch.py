"""Parse a unified diff and remove what must not reach the tests; refuse what git might read otherwise."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hone.environment.environment import PatchRefused
from hone.tasks.configuration import FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """One file's part of a patch."""

    paths: tuple[str, ...]  # every path it reads or writes: one, or two for a rename or copy
    text: str  # from its header to the next part's


MAX_PATH = 4095  # characters; the kernel takes no longer path
_MAX_QUOTED = 4 * MAX_PATH + 2  # of a path whose bytes are all escaped
HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_BINARY = re.compile(r"(?:literal|delta) \d{1,12}")
_DATED = re.compile(r"\d\d-\d\d-\d\d[ \t]+\d\d:\d\d")  # where git would end a name without a tab
_EXTENDED = (
    "old mode ", "new mode ", "deleted file mode ", "new file mode ", "copy from ", "copy to ",
    "rename from ", "rename to ", "similarity index ", "dissimilarity index ", "index ",
)  # fmt: skip


def parse_patch(patch: str) -> list[FilePatch]:
    """Return the parts of a unified diff, one per file; lines before the first file are dropped.

    Reads git's format, binary patches included, and plain `---`/`+++` headers. Raises PatchRefused.
    """
    lines = patch.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    parts: list[FilePatch] = []
    position = _next_header(lines, 0)
    if position == len(lines) and patch.strip():
        raise PatchRefused("the patch names no file")
    while position < len(lines):
        start = position
        paths, position = _read_header(lines, position)
        position = _read_body(lines, position)
        text = "\n".join(lines[start:position]) + "\n"
        parts.append(FilePatch(paths=tuple(dict.fromkeys(paths)), text=text))
        following = _next_header(lines, position)
        if any(line.strip() for line in lines[position:following]):
            raise PatchRefused(
                f"line {position + 1} of the patch is not part of any file: {lines[position][:80]!r}"
            )
        position = following
    return parts


def _next_header(lines: list[str], position: int) -> int:
    while position < len(lines) and not _starts_file(lines, position):
        position += 1
    return position


def _starts_file(lines: list[str], position: int) -> bool:
    if lines[position].startswith("diff --git "):
        return True
    plain = lines[position].startswith("--- ") and position + 1 < len(lines)
    return plain and lines[position + 1].startswith("+++ ")


def _read_header(lines: list[str], position: int) -> tuple[list[str], int]:
    """Return the paths of the part that starts at `position`, and the position of its body."""
    named: list[str] = []
    start = position
    git_line = lines[position] if lines[position].startswith("diff --git ") else None
    if git_line is not None:
        position += 1
        while position < len(lines) and lines[position].startswith(_EXTENDED):
            for prefix in ("rename from ", "rename to ", "copy from ", "copy to "):
                if lines[position].startswith(prefix):
                    named.append(_checked_path(_unquote(lines[position].removeprefix(prefix))))
            position += 1
    if position < len(lines) and _starts_file(lines, position) and lines[position].startswith("--- "):
        for line, prefix in ((lines[position], "a/"), (lines[position + 1], "b/")):
            name, _, rest = line[4:].partition("\t")  # a tab ends the name; git escapes those within
            if git_line is None and (_DATED.search(name) or ("\t" in rest and _DATED.search(rest))):
                raise PatchRefused(f"the name of a file cannot be told from its time: {line[:160]!r}")
            path = _unquote(name)
            if path == "/dev/null":
                is_deleted = any(each.startswith("deleted file mode ") for each in lines[start:position])
                if git_line is not None and prefix == "b/" and not is_deleted:
                    raise PatchRefused(f"{git_line[:160]!r} has no deleted file mode: git writes dev/null")
            else:
                named.append(_checked_path(_without_prefix(path, prefix)))
        position += 2
    if git_line is not None:
        on_line = _git_line_paths(git_line)
        if named and on_line is not None and not set(named) <= set(on_line):
            raise PatchRefused(f"the headers of a file disagree: {git_line[:160]!r}")
        named = on_line or named
    if not named:
        raise PatchRefused(f"no path can be read from {lines[position - 1][:160]!r}")
    return named, position


def _git_line_paths(line: str) -> list[str] | None:
    """Return both paths of `diff --git a/X b/Y`; None where spaces make it ambiguous and git repeats them."""
    rest = line.removeprefix("diff --git ")
    if len(rest) > 2 * _MAX_QUOTED + 1:
        raise PatchRefused(f"the patch has a header of {len(line)} characters")
    half = len(rest) // 2
    if rest.startswith('"'):
        match = re.match(r'("(?:[^"\\]|\\.)*+") (.+)', rest)
        if match is None:
            raise PatchRefused(f"bad quotes in {rest[:160]!r}")
        pair = [_unquote(match[1]), _unquote(match[2])]
    elif rest.endswith('"'):
        start = rest.find(' "')
        if start < 0:
            raise PatchRefused(f"bad quotes in {line[:160]!r}")
        pair = [_unquote(rest[:start]), _unquote(rest[start + 1 :])]
    elif len(rest) % 2 == 1 and rest[half] == " " and rest[2:half] == rest[half + 3 :]:
        pair = [_unquote(rest[:half]), _unquote(rest[half + 1 :])]
    elif rest.count(" ") == 1:
        pair = [_unquote(name) for name in rest.split(" ")]
    else:
        return None
    return [
        _checked_path(_without_prefix(path, prefix)) for path, prefix in zip(pair, ("a/", "b/"), strict=True)
    ]


def _read_body(lines: list[str], position: int) -> int:
    """Return the position after the hunks, or the binary data, that start at `position`."""
    if position < len(lines) and lines[position] == "GIT binary patch":
        return _read_binary(lines, position + 1)
    if position < len(lines) and lines[position].startswith("Binary files "):
        raise PatchRefused("the patch names a binary file without its content")
    while position < len(lines) and (hunk := HUNK.match(lines[position])):
        old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        position += 1
        while old > 0 or new > 0:
            if position == len(lines):
                return position  # GNU patch accepts a hunk without its last context lines
            kind = lines[position][:1]
            old -= kind in ("-", " ", "")
            new -= kind in ("+", " ", "")
            if kind not in ("-", "+", " ", "", "\\") or old < 0 or new < 0:
                raise PatchRefused(f"line {position + 1} of the patch does not fit its hunk")
            position += 1
        if position < len(lines) and lines[position].startswith("\\"):
            position += 1
    return position


def _read_binary(lines: list[str], position: int) -> int:
    """Return the position after the binary content, and the content to undo it if there is one."""
    start = position
    while position < len(lines) and _BINARY.fullmatch(lines[position]):
        while position < len(lines) and lines[position]:
            position += 1
        position = min(position + 1, len(lines))
    if position == start:
        raise PatchRefused(f"line {start} of the patch begins binary content, which does not follow")
    return position


def _without_prefix(path: str, prefix: str) -> str:
    if not path.startswith(prefix):
        raise PatchRefused(f"the path {path[:160]!r} in the patch does not start with {prefix}")
    return path[len(prefix) :]


def _checked_path(path: str) -> str:
    if len(path) > MAX_PATH:
        raise PatchRefused(f"the patch names a path of {len(path)} characters (limit: {MAX_PATH})")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise PatchRefused(f"the patch reaches outside the repository: {path[:160]!r}")
    return path


_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\(?:[0-3][0-7]{2}|[abtnvfr"\\]))*+)"')


def _unquote(text: str) -> str:
    """Return a path without git's C-style quotes, which it has when its bytes are unusual."""
    if not text.startswith('"'):
        if "\r" in text:
            raise PatchRefused(f"git would end a name at its carriage return: {text[:160]!r}")
        return text
    if len(text) > _MAX_QUOTED:
        raise PatchRefused(f"the patch names a path of {len(text)} characters")
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        raise PatchRefused(f"bad quotes or an unknown escape in {text[:160]!r}")

    def byte(found: re.Match[bytes]) -> bytes:
        return bytes([_ESCAPES.get(found[1]) or int(found[1], 8)])

    try:
        raw = quoted[1].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PatchRefused(f"half of a surrogate pair in {text[:160]!r}") from None
    return re.sub(rb"\\([0-7]{3}|.)", byte, raw).decode("utf-8", "surrogateescape")


# Read by pytest or Python before or beside the tests, in any directory.
PROTECTED_NAMES = {*FILES, "conftest.py"}
START_MODULES = {"sitecustomize", "usercustomize"}  # as a file, a package or an extension module
PROTECTED_SUFFIXES = (".pth", ".pyc", ".pyo")
PROTECTED_DIRECTORIES = {"__pycache__", ".pytest_cache"}
PROTECTED_DIRECTORY_SUFFIXES = (".egg-info", ".dist-info")  # hold plugins' entry points, beside any module


LEFT_BY_LADDER = (".rej", ".orig")  # suffixes of what `git apply --reject` and `patch` leave


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredPatch:
    """A patch without its changes of protected paths."""

    text: str
    paths: tuple[str, ...]  # changed by `text`
    removed_paths: tuple[str, ...]  # protected paths whose changes were dropped


def filter_patch(patch: str, protected: Iterable[str]) -> FilteredPatch:
    """Drop changes of protected paths: those given, configuration of pytest and Python, git's own files.

    Args:
        protected: paths below the repository; one that ends in "/" protects the whole directory.
    Raises:
        PatchRefused: the patch is malformed, reaches outside the repository or adds a link that does.
    """
    closed = with_parents(protected)
    kept: list[FilePatch] = []
    removed: list[str] = []
    for part in parse_patch(patch):
        if any(is_protected(path, closed) for path in part.paths):
            removed += part.paths
        else:
            _check_link(part)
            kept.append(part)
    return FilteredPatch(
        text="".join(part.text for part in kept),
        paths=tuple(path for part in kept for path in part.paths),
        removed_paths=tuple(removed),
    )


def with_parents(protected: Iterable[str]) -> set[str]:
    """Return protected paths and their parents, which a patch may not replace by files."""
    closed: set[str] = set()
    for entry in protected:
        closed.add(entry)
        parent = entry.rstrip("/") if entry.endswith("/") else entry.rpartition("/")[0]
        while parent and parent not in closed:
            closed.add(parent)
            parent = parent.rpartition("/")[0]
    return closed


def _is_gits(name: str) -> bool:
    return name.lower().startswith(".git")


def is_protected(path: str, protected: set[str]) -> bool:
    """Return whether a patch may not change `path`; see `filter_patch`.

    Args:
        protected: files, directories that end in "/", and the parents of both.
    """
    parts = path.rstrip("/").split("/")  # git writes a directory with a slash
    if any(_is_gits(part) or part in PROTECTED_DIRECTORIES for part in parts):
        return True
    if any(part.partition(".")[0] in START_MODULES for part in parts):
        return True
    if any(part.endswith(PROTECTED_DIRECTORY_SUFFIXES) for part in parts):
        return True
    if parts[-1] in PROTECTED_NAMES or parts[-1].endswith(PROTECTED_SUFFIXES):
        return True
    if not protected:
        return False
    return path in protected or any(folder in protected for folder in folders_around(path))


def folders_around(path: str) -> Iterator[str]:
    """Yield the directories around `path`, each ending in "/"."""
    end = path.find("/") + 1
    while end:
        yield path[:end]
        end = path.find("/", end) + 1


def _check_link(part: FilePatch) -> None:
    """Raise PatchRefused for a link that leaves the repository or leads into git's directory, or where the
    ladder of `apply_patch` leaves rejected hunks; and for anything but a file or a link."""
    path, header = part.paths[-1], part.text.partition("\n@@")[0]
    modes = set(re.findall(r"^(?:new file mode|new mode|index [0-9a-f.]+) (\d+)$", header, re.MULTILINE))
    if modes - {"100644", "100755", "120000"}:
        raise PatchRefused(f"{path} is not a file or a link (mode {', '.join(sorted(modes))})")
    if "120000" not in modes:
        return
    if "GIT binary patch" in part.text:
        raise PatchRefused(f"{path} is a link in binary form")
    if path.endswith(LEFT_BY_LADDER):
        raise PatchRefused(f"{path} is a link with the name of a rejected hunk")
    added = [line[1:] for line in part.text.partition("\n@@")[2].split("\n") if line.startswith("+")]
    if len(added) > 1:
        raise PatchRefused(f"{path} is a link with a target of {len(added)} lines")
    for line in added:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), line))
        if line.startswith("/") or target == ".." or target.startswith("../"):
            raise PatchRefused(f"{path} is a link to {line[:160]!r}, outside the repository")
        if any(_is_gits(name) for name in (*line.split("/"), *target.split("/"))):
            raise PatchRefused(f"{path} is a link to {line[:160]!r}, git's own")
