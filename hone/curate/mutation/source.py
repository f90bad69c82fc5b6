"""A parsed Python file and edits of its text; what no edit names stays as it is, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from hone.tasks.errors import TaskError

BOM = "\ufeff"


class Edit(NamedTuple):
    """The bytes from `start` to `end` of a file's UTF-8 text become `new`."""

    start: int
    end: int
    new: str


Change = tuple[Edit, ...]  # the edits of one file that make one bug


class Source:
    """One file, and where each node lies in it. Offsets are in bytes of its UTF-8 text."""

    def __init__(self, path: str, text: str) -> None:
        """Raises TaskError when the file cannot be edited safely: it is no Python, or its lines end oddly."""
        if text.startswith(BOM) or "\r" in text.replace("\r\n", "") or "\f" in text:
            raise TaskError(f"{path}: a byte order mark or odd line ends; files like this are left alone")
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
            self._spans = wrapper.resolve(ByteSpanPositionProvider)
        except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
            raise TaskError(f"{path}: cannot be parsed as Python: {str(error).splitlines()[0]}") from None
        self.path, self.text, self.data = path, text, text.encode()
        self.module = wrapper.module
        self.newline = self.module.default_newline

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """From the first to past the last byte of a node, with its own parentheses and decorators."""
        first, last = node, node
        if isinstance(node, cst.BaseExpression) and node.lpar:
            first, last = node.lpar[0], node.rpar[-1]
        elif isinstance(node, cst.FunctionDef | cst.ClassDef) and node.decorators:
            first = node.decorators[0]
        start, end = self._span(first), self._span(last)
        return start.start, end.start + end.length

    def _span(self, node: cst.CSTNode) -> CodeSpan:
        span = self._spans[node]
        assert isinstance(span, CodeSpan)
        return span

    def code(self, node: cst.CSTNode) -> str:
        """The node's text as it is written, with its parentheses."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def line(self, offset: int) -> int:
        """The number of the line that holds a byte, from 1."""
        return self.data.count(b"\n", 0, offset) + 1

    def indentation(self, node: cst.CSTNode) -> str:
        """The white space before the node on its line."""
        start = self.span(node)[0]
        line = self.data[self.data.rfind(b"\n", 0, start) + 1 : start]
        return line[: len(line) - len(line.lstrip())].decode()

    def replace(self, node: cst.CSTNode, new: str) -> Edit:
        return Edit(*self.span(node), new)

    def swap(self, one: cst.CSTNode, other: cst.CSTNode) -> Change:
        """Exchange the texts of two nodes."""
        return self.replace(one, self.code(other)), self.replace(other, self.code(one))

    def remove_statement(self, statement: cst.CSTNode, siblings: Sequence[cst.CSTNode]) -> Edit:
        """Delete the whole lines of a statement; a block that has no other keeps `pass`."""
        others = [s for s in siblings if s is not statement and not is_text(s)]
        if not others:
            return self.replace(statement, "pass")
        return Edit(*self.lines(statement), "")

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the bytes from the start of the node's first line to the end of its last line."""
        start, end = self.span(node)
        after = self.data.find(b"\n", end)
        return self.data.rfind(b"\n", 0, start) + 1, len(self.data) if after < 0 else after + 1


def is_text(statement: cst.CSTNode) -> bool:
    """Whether a statement is only a string: a docstring or a comment in disguise."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    small = statement.body[0]
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def apply(data: bytes, edits: Iterable[Edit]) -> bytes | None:
    """The edited text; None where two of the edits touch the same bytes."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        if edit.start < at:
            return None
        parts += [data[at : edit.start], edit.new.encode()]
        at = edit.end
    return b"".join([*parts, data[at:]])
