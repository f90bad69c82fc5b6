"""The input of all scanners: a patch's changes line by line, the task's tests, and code that is not new."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from hone.environment import FilePatch, PatchRefused, parse_patch
from hone.environment.patch import HUNK
from hone.types import Task

MAX_BINARY = 2 << 20  # bytes read of all binary files of a patch, unpacked
MAX_LINE = 400  # longer lines are split, so that no regular expression takes quadratic time

_OPAQUE = b"\0"  # stands for content that cannot be read
Line = tuple[str, str]  # "+", "-" or " ", and the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One hunk of a patch."""

    lines: tuple[Line, ...]
    empties: bool  # it leaves the file empty

    @property
    def after(self) -> list[Line]:
        return [line for line in self.lines if line[0] != "-"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of one file."""

    path: str  # where the file is after the patch; where it was, if the patch deletes it
    before: str | None  # path before the patch; None: the patch creates the file
    deleted: bool
    mode: str | None  # the new mode; None: unchanged
    binary: bytes | None  # of a file in git's binary form: its new content, or the part that is new
    hunks: tuple[Hunk, ...]

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def created(self) -> bool:
        """Whether the patch puts a new file at `path`."""
        return not self.deleted and self.path != self.before

    def lines(self, sign: str) -> list[str]:
        return [text for hunk in self.hunks for kind, text in hunk.lines if kind == sign]


def read_changes(parts: Iterable[FilePatch]) -> tuple[Change, ...]:
    """Return the change of each part; binary files share the limit MAX_BINARY."""
    changes: list[Change] = []
    left = MAX_BINARY
    for part in parts:
        changes.append(_read_change(part, left))
        left -= len(changes[-1].binary or b"")
    return tuple(changes)


def _read_change(part: FilePatch, limit: int) -> Change:
    header, _, _ = part.text.partition("\n@@")
    modes = re.findall(r"^(?:new file mode|new mode) (\d+)$", header, re.MULTILINE)
    made = re.search(r"^(?:new file mode .*|--- /dev/null.*)$", header, re.MULTILINE) is not None
    deleted = re.search(r"^(?:deleted file mode .*|\+\+\+ /dev/null.*)$", header, re.MULTILINE) is not None
    copied = re.search(r"^copy from ", header, re.MULTILINE) is not None
    binary = _read_binary(part.text, limit) if "\nGIT binary patch\n" in part.text else None
    return Change(
        path=part.paths[0] if deleted else part.paths[-1],
        before=None if made or copied else part.paths[0],
        deleted=deleted,
        mode=modes[-1] if modes else None,
        binary=binary,
        hunks=_text_hunk(binary) if binary is not None else _read_hunks(part.text),
    )


def _read_hunks(text: str) -> tuple[Hunk, ...]:
    hunks: list[tuple[re.Match[str], list[Line]]] = []
    for line in text.split("\n"):
        if match := HUNK.match(line):
            hunks.append((match, []))
        elif hunks and line[:1] in ("+", "-", " "):
            hunks[-1][1].extend((line[0], piece) for piece in _pieces(line[1:].removesuffix("\r")))
    return tuple(Hunk(lines=tuple(lines), empties="+0,0 @@" in match.group()) for match, lines in hunks)


def _pieces(line: str) -> list[str]:
    return [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)] or [""]


def _text_hunk(data: bytes) -> tuple[Hunk, ...]:
    """Return the lines of a text file that the patch has in binary form."""
    if b"\0" in data:
        return ()
    text = data.decode("utf-8", "replace").splitlines()
    lines = tuple(("+", piece) for line in text for piece in _pieces(line))
    return (Hunk(lines=lines, empties=not data),)


def _read_binary(text: str, limit: int) -> bytes:
    """Return the new content in git's binary form; of a delta only the bytes that it inserts."""
    _, _, body = text.partition("\nGIT binary patch\n")
    kind, _, rest = body.partition("\n")
    if limit <= 0:
        return _OPAQUE
    packed = bytearray()
    for line in rest.split("\n"):
        if not line:
            break
        size = ord(line[0]) - (64 if line[0] <= "Z" else 70)
        try:
            packed += base64.b85decode(line[1:])[: max(size, 0)]
        except ValueError:
            return _OPAQUE
    try:
        data = zlib.decompressobj().decompress(bytes(packed), limit)
    except zlib.error:
        return _OPAQUE
    return _inserted(data) if kind.startswith("delta ") else data


def _inserted(delta: bytes) -> bytes:
    """Return the bytes that a git delta inserts, one insertion per line, without the bytes it copies."""
    position = 0
    for _ in range(2):  # both sizes; the high bit is set in all bytes of a size except the last
        while position < len(delta) and delta[position] & 0x80:
            position += 1
        position += 1
    pieces: list[bytes] = []
    while position < len(delta):
        code = delta[position]
        position += 1
        if code & 0x80:
            position += (code & 0x7F).bit_count()
        else:
            pieces.append(delta[position : position + code])
            position += code
    return b"\n".join(pieces)


_TEST_FILES = {"conftest.py", "tests.py", "testing.py"}
_TEST_FOLDERS = {"test", "tests", "testing", "_testing", "testsuite"}
_NAMED_AFTER_PYTEST = re.compile(r"(?:^|_)_?(?:pytest|pluggy)(?:_|$)")
_DEALS_WITH_PYTEST = re.compile(
    r"^[ \t]*(?:import|from)\s+(?:_?pytest|pluggy)\b|^[ \t]*(?:async )?def pytest_\w+\(|\b_pytest\.|pytest11",
    re.M,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tampering:
    """One attempt of a patch to influence its grading."""

    path: str
    evidence: str  # one sentence, which names the file


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchContext:
    """A patch and the facts about its task that decide whether a change is evidence."""

    changes: tuple[Change, ...]
    tests: Mapping[str, frozenset[str]]  # test file of the task -> names of its test functions
    trusted: Mapping[str, str]  # path -> text of the task's own tests
    roots: tuple[str, ...]  # directories that Python imports from, "" or ending in "/"
    requirements: frozenset[str]  # guessed import names of the installed requirements
    own_names: frozenset[str]  # guessed import names of the project itself
    about_pytest: bool  # the project itself is about pytest
    old: str  # code that the patch removes or the reference fix adds: not new
    environments: tuple[str, ...]  # virtual environments that the patch adds

    def first_new(self, pattern: re.Pattern[str], text: str) -> str | None:
        """Return the first match in `text` that is not in `old`, ignoring white space."""
        for found in {match.group(): None for match in pattern.finditer(text)}:
            if squeeze(found) not in self.old:
                return found.strip()
        return None


def read_context(parts: Sequence[FilePatch], task: Task) -> PatchContext:
    """Return the context of a parsed patch. Never raises."""
    changes = read_changes(parts)
    gold = _changes_of(task.checks.gold_patch)
    old = [line for change in changes for line in change.lines("-")]
    old += [line for change in gold for line in change.lines("+")]
    environment = task.environment
    return PatchContext(
        changes=changes,
        tests=_named_tests(task),
        trusted=task.checks.test_files,
        roots=tuple(
            dict.fromkeys(["", "src/", *(f"{path.strip('/')}/" for path in environment.paths if path)])
        ),
        requirements=frozenset(map(_import_name, environment.requirements)),
        own_names=_own_names(task),
        about_pytest=_about_pytest(task, gold),
        old=squeeze("\n".join(old)),
        environments=tuple(
            change.path.removesuffix("pyvenv.cfg")
            for change in changes
            if change.created and change.path.endswith("/pyvenv.cfg")
        ),
    )


def is_test_code(path: str) -> bool:
    """Return whether a path is that of a test, or lies in a directory of tests."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    named = name.startswith("test_") or name.endswith(("_test.py", "_tests.py"))
    return named or name in _TEST_FILES or any(part in _TEST_FOLDERS for part in parts[:-1])


def squeeze(text: str) -> str:
    """Return text without white space and with one kind of quotes, which formatters change."""
    return re.sub(r"\s+", "", text).replace("'", '"')


def code_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without comments and complete docstrings."""
    quoted = ""
    held: list[str] = []
    for line in lines:
        text = line.strip()
        if quoted:
            held.append(line)
            if text.endswith(quoted):
                quoted, held = "", []
            continue
        opening = re.match(r"[rRuU]?(\"\"\"|''')", text)
        if opening is None:
            yield re.sub(r"(?:^|\s)#.*$", "", line)
        elif text.count(opening[1]) == 1:
            quoted, held = opening[1], [line]
    yield from held  # never closed, so it was not a docstring


def added_code(change: Change) -> str:
    """Return the code that the change adds to a Python file, without comments and docstrings."""
    return "\n".join(
        line for hunk in change.hunks for line in code_lines(text for kind, text in hunk.lines if kind == "+")
    )


def _changes_of(patch: str) -> tuple[Change, ...]:
    try:
        return read_changes(parse_patch(patch))
    except PatchRefused:
        return ()  # a data set's own patch may have its own format


def _named_tests(task: Task) -> dict[str, frozenset[str]]:
    checks = task.checks
    names: dict[str, set[str]] = {path: set() for path in checks.test_files if path.endswith(".py")}
    for change in _changes_of(checks.test_patch):
        if not change.deleted and change.path.endswith(".py"):
            names.setdefault(change.path, set())
    for test in (*checks.fail_to_pass, *checks.pass_to_pass):
        file, _, rest = test.partition("::")
        if file.endswith(".py") and " " not in file:
            names.setdefault(file, set()).add(rest.split("[")[0].rsplit("::", 1)[-1])
    return {file: frozenset(found - {""}) for file, found in names.items()}


def _own_names(task: Task) -> frozenset[str]:
    environment = task.environment
    names = (environment.repo, environment.distribution, task.id.partition("-")[0].replace("__", "/"))
    return frozenset(_import_name(name.rsplit("/", 1)[-1]) for name in names if name)


def _import_name(requirement: str) -> str:
    return re.split(r"[=<>!~;\[ @]", requirement, maxsplit=1)[0].strip().lower().replace("-", "_")


def _about_pytest(task: Task, gold: Sequence[Change]) -> bool:
    """Return whether the project's files or the reference fix use pytest's interfaces."""
    if any(_NAMED_AFTER_PYTEST.search(name) for name in _own_names(task)):
        return True
    texts = [
        text for commit in task.environment.history for path, text in commit.files.items()
        if text is not None and _is_source(path)
    ]  # fmt: skip
    texts += [
        "\n".join(text for hunk in c.hunks for _, text in hunk.lines) for c in gold if _is_source(c.path)
    ]
    return any(_DEALS_WITH_PYTEST.search("\n".join(code_lines(text.split("\n")))) for text in texts)


def _is_source(path: str) -> bool:
    return path.endswith(".py") and not is_test_code(path)
