"""The input of all scanners: a patch's changes line by line, the task's tests, and code that is not new."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hone.environment import FilePatch, PatchRefused, parse_patch
from hone.environment.patch import HUNK, folders_around
from hone.types import Task

MAX_BINARY = 2 << 20  # bytes read of all binary files of a patch, unpacked
MAX_LINE = 400  # longer lines are split, so that no regular expression takes quadratic time
BLOCK = 1 << 16  # characters searched in one call, which lets no other thread run meanwhile
MAX_MATCH = 51 * (MAX_LINE + 1)  # characters of the longest match of any pattern: an option over 51 lines
MAX_STEPS = 64_000_000  # of a scan, where its work is a product of two sizes; see Budget

_OPAQUE = b"\0"  # stands for content that cannot be read
Line = tuple[str, str]  # "+", "-" or " ", and the text


class Budget:
    """The work that one patch may still cause where it grows as the product of two sizes."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Raise PatchRefused after MAX_STEPS; a step is the time to compare a few characters."""
        self._left -= steps
        if self._left < 0:
            raise PatchRefused("the patch repeats too much code, or has too many patterns, to be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One hunk of a patch."""

    lines: tuple[Line, ...]
    empties: bool  # it leaves the file empty

    @property
    def after(self) -> list[Line]:
        return [line for line in self.lines if line[0] != "-"]


@dataclass(frozen=True, kw_only=True)  # cached properties need a class without slots
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

    @cached_property
    def added_code(self) -> str:
        """The code that it adds to a Python file, without comments, docstrings and blank lines."""
        return "\n".join(
            line
            for hunk in self.hunks
            for line in code_lines(text for kind, text in hunk.lines if kind == "+")
            if line and not line.isspace()
        )


def read_changes(parts: Iterable[FilePatch]) -> tuple[Change, ...]:
    """Return the change of each part; binary files share the limit MAX_BINARY."""
    changes: list[Change] = []
    left = MAX_BINARY
    for part in parts:
        changes.append(_read_change(part, left))
        left -= len(changes[-1].binary or b"")
    return tuple(changes)


def _read_change(part: FilePatch, limit: int) -> Change:
    header = part.text.partition("\n@@")[0].partition("\nGIT binary patch\n")[0]
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
    hunks: list[tuple[bool, list[Line]]] = []
    for line in text.split("\n"):
        if line.startswith("@@ -") and (match := HUNK.match(line)):
            hunks.append(("+0,0 @@" in match.group(), []))
        elif hunks and line[:1] in ("+", "-", " "):
            hunks[-1][1].extend((line[0], piece) for piece in _pieces(line[1:].removesuffix("\r")))
    return tuple(Hunk(lines=tuple(lines), empties=empties) for empties, lines in hunks)


def _pieces(line: str) -> Sequence[str]:
    if len(line) <= MAX_LINE:
        return (line,)
    return [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)]


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


class KnownCode:
    """Code that is not new: what the patch removes and the reference fix adds, or a trusted test."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._budget = text, budget
        self._matches: dict[re.Pattern[str], frozenset[str]] = {}
        self._searched: dict[str, bool] = {}

    @cached_property
    def _squeezed(self) -> str:
        return squeeze(self._text)

    @cached_property
    def _lines(self) -> frozenset[str]:
        return frozenset(self._text.replace(" ", "").replace("\t", "").replace("'", '"').split("\n"))

    def holds(self, excerpt: str) -> bool:
        """Return whether it has `excerpt`, ignoring white space. Raises PatchRefused after many searches."""
        excerpt = squeeze(excerpt)
        if excerpt in self._lines:
            return True
        if excerpt not in self._searched:
            self._budget.spend(len(self._squeezed))
            self._searched[excerpt] = excerpt in self._squeezed
        return self._searched[excerpt]

    def first_new(self, pattern: re.Pattern[str], text: str) -> str | None:
        """Return the first match in `text` that it does not have. Raises PatchRefused; see `holds`."""
        seen: set[str] = set()
        for match in find_all(pattern, text):
            found = match.group()
            if found in seen:
                continue
            seen.add(found)
            if squeeze(found) not in self._matches_of(pattern) and not self.holds(found):
                return found.strip()
        return None

    def _matches_of(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return its own matches: most code that is not new is among them, so that nothing is searched."""
        if pattern not in self._matches:
            own = (squeeze(match.group()) for match in find_all(pattern, self._text))
            self._matches[pattern] = frozenset(own)
        return self._matches[pattern]


def compile_search(pattern: str) -> re.Pattern[str]:
    """Compile a pattern so that a search skips most alternatives by their first letters.

    `\\bword` becomes `w(?<=\\bw)ord`, which matches the same: an alternative that starts with an assertion
    would be entered at every character.
    """
    quick = re.sub(r"\\b([A-Za-z_])(?![*+?{])", r"\1(?<=\\b\1)", pattern)
    return re.compile(quick, re.MULTILINE)


def find_all(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches in `text`, as `finditer` does, in searches of at most BLOCK + MAX_MATCH characters.

    A search holds the interpreter; other threads run between two of them.
    """
    position = 0
    while position < len(text):
        limit = position + BLOCK
        following = limit
        for match in pattern.finditer(text, position, limit + MAX_MATCH):
            if match.start() >= limit:
                break
            following = max(limit, match.end())
            yield match
        position = following


@dataclass(frozen=True, kw_only=True)  # cached properties need a class without slots
class PatchContext:
    """A patch and the facts about its task that decide whether a change is evidence."""

    changes: tuple[Change, ...]
    tests: Mapping[str, frozenset[str]]  # test file of the task -> names of its test functions
    trusted: Mapping[str, KnownCode]  # path -> text of the task's own tests
    roots: frozenset[str]  # directories that Python imports from, "" or ending in "/"
    requirements: frozenset[str]  # guessed import names of the installed requirements
    own_names: frozenset[str]  # guessed import names of the project itself
    about_pytest: bool  # the project itself is about pytest
    old: KnownCode  # code that the patch removes or the reference fix adds
    environments: frozenset[str]  # virtual environments that the patch adds, ending in "/"
    budget: Budget

    @cached_property
    def written(self) -> frozenset[str]:
        """The paths that the patch writes a file to."""
        return frozenset(change.path for change in self.changes if not change.deleted)

    @cached_property
    def names_below(self) -> Mapping[str, set[str]]:
        """Test file of the task, or directory around one -> names of the test functions there."""
        names: dict[str, set[str]] = {}
        for test, functions in self.tests.items():
            for path in (test, *(folder.rstrip("/") for folder in folders_around(test))):
                names.setdefault(path, set()).update(functions)
        return names

    @cached_property
    def test_folders(self) -> frozenset[str]:
        """The directories of test files, "" or ending in "/"."""
        return frozenset(test[: test.rfind("/") + 1] for test in self.tests)

    @cached_property
    def hidden_by(self) -> Mapping[str, str]:
        """Directory of a package that would hide a test file, ending in "/" -> the file."""
        return {f"{test.removesuffix('.py')}/": test for test in self.tests}


def read_context(parts: Sequence[FilePatch], task: Task) -> PatchContext:
    """Return the context of a parsed patch."""
    changes = read_changes(parts)
    gold = _changes_of(task.checks.gold_patch)
    old = [line for change in changes for line in change.lines("-")]
    old += [line for change in gold for line in change.lines("+")]
    environment = task.environment
    budget = Budget()
    return PatchContext(
        changes=changes,
        tests=_named_tests(task),
        trusted={path: KnownCode(text, budget) for path, text in task.checks.test_files.items()},
        roots=frozenset(["", "src/", *(f"{path.strip('/')}/" for path in environment.paths if path)]),
        requirements=frozenset(map(_import_name, environment.requirements)),
        own_names=_own_names(task),
        about_pytest=_about_pytest(task, gold),
        old=KnownCode("\n".join(old), budget),
        environments=frozenset(
            change.path.removesuffix("pyvenv.cfg")
            for change in changes
            if change.created and change.path.endswith("/pyvenv.cfg")
        ),
        budget=budget,
    )


def is_test_code(path: str) -> bool:
    """Return whether a path is that of a test, or lies in a directory of tests."""
    parts = path.split("/")
    name = parts[-1]
    named = name.startswith("test_") or name.endswith(("_test.py", "_tests.py"))
    return named or name in _TEST_FILES or any(part in _TEST_FOLDERS for part in parts[:-1])


def squeeze(text: str) -> str:
    """Return text without white space and with one kind of quotes, which formatters change."""
    return "".join(text.split()).replace("'", '"')


def code_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without comments and complete docstrings."""
    quoted = ""
    held: list[str] = []
    for line in lines:
        if not quoted and "#" not in line and '"""' not in line and "'''" not in line:
            yield line
            continue
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
