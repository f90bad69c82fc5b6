"""A patch's changes file by file and line by line."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hone.environment import FilePatch
from hone.environment.patch import HUNK

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
