"""The file tools: view, rewrite, grep, listdir. None of them starts a shell."""

import difflib
import glob
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

FILE_MAX = 10 << 20  # bytes of a file that is shown or rewritten
LINE_MAX = 2000  # characters shown of one line
SHOWN_MAX = 110  # lines shown at once
ENTRIES_MAX = 500  # lines of a directory tree
MATCH_MAX = 300  # characters shown of a matching line
DIFF_MAX = 20000  # characters
SKIPPED = {".git", "__pycache__", "node_modules"}  # directories that are neither searched nor listed


class Refused(Exception):
    """The request cannot be done; the agent gets the message."""


def resolve(workdir: str, path: str) -> str:
    if "\0" in path:
        raise Refused(f"`{path!r}` is not a path.")
    return os.path.normpath(os.path.join(workdir, path.strip()))


def read_lines(path: str, shown: str) -> "list[str]":
    """Return a text file's lines, without their ends. Raises Refused."""
    return read_text(path, shown).split("\n")


def read_text(path: str, shown: str) -> str:
    """Return a file's text; invalid UTF-8 becomes surrogates, which a rewrite keeps. Raises Refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not wait for the writer of a pipe
    except OSError as error:
        raise Refused(f"`{shown}`: {error.strerror}.") from None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size > FILE_MAX:
        os.close(fd)
        reason = f"larger than {FILE_MAX >> 20} MiB" if stat.S_ISREG(info.st_mode) else "not a regular file"
        raise Refused(f"`{shown}` is {reason}.")
    with os.fdopen(fd, "rb") as file:
        data = file.read(FILE_MAX)
    if b"\0" in data:
        raise Refused(f"`{shown}` is a binary file.")
    return data.decode("utf-8", "surrogateescape")


def view(workdir: str, path: str, start: "int | None", end: "int | None") -> "dict[str, Any]":
    """Return lines start..end of a file, at most SHOWN_MAX, or the tree of a directory."""
    full = resolve(workdir, path)
    if os.path.isdir(full):
        return {"tree": tree(full, 1)}
    lines = read_lines(full, path)
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return {"total": 0}
    first, last = start or 1, min(end or len(lines), len(lines))
    if not 1 <= first <= len(lines):
        raise Refused(f"Invalid start index: `{start}`. It should be between 1 and {len(lines)}.")
    if last < first:
        raise Refused(f"Invalid range: start index `{first}` is greater than end index `{end}`.")
    shown = [line.rstrip("\r")[:LINE_MAX] for line in lines[first - 1 : last][:SHOWN_MAX]]
    return {
        "path": os.path.realpath(full),
        "lines": shown,
        "first": first,
        "total": len(lines),
        "truncated": last - first + 1 > SHOWN_MAX,
    }


def rewrite(
    workdir: str, path: str, start: "int | None", end: "int | None", new_code: str, create: bool
) -> "dict[str, Any]":
    """Replace lines start..end, or all. Returns the diff, and `kept`: see `kept_lines`."""
    full = os.path.realpath(resolve(workdir, path))
    if not full.startswith(os.path.join(os.path.realpath(workdir), "")):
        raise Refused(f"`{path}` is outside of the working directory.")
    if start is not None and end is not None and start > end:
        raise Refused("Invalid line number range, start should be less than or equal to end.")
    if (start is not None and start <= 0) or (end is not None and end <= 0):
        raise Refused("Invalid line number, line numbers are 1-based.")
    if start is None and end is not None:
        raise Refused("Invalid line number range, end is given without start.")
    old = "" if create and not os.path.lexists(full) else read_text(full, path)
    new = replaced(old, start, end, new_code)
    try:
        if create:
            os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(new.encode("utf-8", "surrogateescape"))
    except (OSError, UnicodeEncodeError) as error:
        raise Refused(f"`{path}`: {getattr(error, 'strerror', None) or error}.") from None
    before, after = old.split("\n"), new.split("\n")
    return {"path": full, "diff": diff(old, new), "kept": kept_lines(before, after)}


def replaced(old: str, start: "int | None", end: "int | None", new_code: str) -> str:
    """Return `old` with lines start..end replaced; a start past the last line appends."""
    if start is None:
        return new_code
    code = new_code.replace("\r\n", "\n")
    new = (code[:-1] if code.endswith("\n") else code).split("\n") if code else []
    if "\r\n" in old:
        new = [line + "\r" for line in new]
    lines = old.split("\n")
    count = len(lines) - (lines[-1] == "")
    first = min(start - 1, count)
    lines[first : max(first, min(end or start, count))] = new
    return "\n".join(lines)


def diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), fromfile="original", tofile="current"
    )
    text = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
    if len(text) <= DIFF_MAX:
        return text
    return f"{text[:DIFF_MAX]}\n[... {len(text) - DIFF_MAX} characters omitted ...]\n"


def kept_lines(before: "list[str]", after: "list[str]") -> "list[list[int]]":
    """Return the runs of unchanged lines: [first line before, first line after, count] each."""
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    runs = [[1, 1, head]]
    if len(old) * len(new) < 4_000_000:  # the matcher's cost grows with the product
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        runs += [[head + block.a + 1, head + block.b + 1, block.size] for block in blocks]
    runs.append([len(before) - tail + 1, len(after) - tail + 1, tail])
    return [run for run in runs if run[2]]


# --- trees


def listdir(workdir: str, path: str, depth: int) -> "dict[str, Any]":
    if depth <= 0:
        raise Refused(f"Depth must be 1 or greater, got `depth={depth}`")
    full = resolve(workdir, path)
    if not os.path.isdir(full):
        raise Refused(f"`{path}` is not a directory.")
    return {"tree": tree(full, min(depth, 20))}


def tree(root: str, depth: int) -> str:
    lines = [root]
    omitted = 0
    for line in branches(root, depth, ""):
        if len(lines) > ENTRIES_MAX:
            omitted += 1
        else:
            lines.append(line)
        if omitted > 100 * ENTRIES_MAX:
            break
    return "\n".join([*lines, f"[... {omitted} more entries ...]"] if omitted else lines)


def branches(folder: str, depth: int, indent: str) -> "Iterator[str]":
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        yield f"{indent}|-- [{error.strerror}]"
        return
    entries = [entry for entry in entries if entry.name not in SKIPPED]
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        yield f"{indent}|-- {entry.name}{'/' if is_folder else ''}"
        if is_folder and depth > 1:
            last = entry is entries[-1]
            yield from branches(entry.path, depth - 1, f"{indent}{'  ' if last else '|'}  ")


# --- search


def grep(workdir: str, pattern: str, path: str, limit: int) -> "dict[str, Any]":
    """Return the first `limit` lines that match: [path, line number, text] each."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Refused(f"`{pattern}` is not a regular expression: {error}.") from None
    matches: list[Any] = []
    for name in searched(workdir, path):
        try:
            lines = read_lines(name, name)
        except Refused:
            continue  # binary, too large or gone: skipped, as grep -I does
        shown = os.path.relpath(name, workdir) if name.startswith(workdir) else name
        for number, line in enumerate(lines, start=1):
            if wanted.search(line):
                matches.append([shown, number, line if len(line) < MATCH_MAX else line[:MATCH_MAX] + "..."])
                if len(matches) >= limit:
                    return {"matches": matches, "limited": True}
    return {"matches": matches, "limited": False}


def searched(workdir: str, path: str) -> "Iterator[str]":
    full = resolve(workdir, path or ".")
    places = [full] if os.path.lexists(full) else sorted(glob.iglob(full, recursive=True))
    if not places:
        raise Refused(f"`{path}` does not exist.")
    for place in places:
        if not os.path.isdir(place):
            yield place
            continue
        for folder, folders, names in os.walk(place):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for name in sorted(names):
                yield os.path.join(folder, name)
